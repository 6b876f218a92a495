//! Voice quality by the E-model: ITU-T G.107 in full, and codec values of ITU-T G.113 Appendix I.
//!
//! Narrow-band codecs are rated by G.107. Wide-band codecs are rated on the scale of G.107.1 (129 at best) reduced to
//! delay, coding and loss, and divided by 1.29, as G.107.1 does to derive a MOS from R. So the ratings of both range
//! from 0 to 100.

mod emodel;

pub use codec::quality::{CodecBand, CodecQuality, ValueSource, codec_quality, encoding_name};
pub use emodel::{EModel, Rating, delay_impairment, effective_impairment, mos};

/// Best rating of the wide-band scale (G.107.1).
const WIDEBAND_BEST: f64 = 129.0;

/// Measured figures of a voice stream.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Observation {
    /// Packets lost, in percent.
    pub loss_percent: f64,
    /// Burst ratio: 1 is random loss.
    pub burst_ratio: f64,
    /// One-way delay from mouth to ear in milliseconds, echo-free.
    pub delay_ms: f64,
}

/// A rating from 0 to 100 and its mean opinion score.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quality {
    /// Transmission rating factor.
    pub r: f64,
    /// MOS-CQE, 1 to 4.5; for wide-band codecs on the wide-band scale.
    pub mos: f64,
}

/// Rates a stream of a codec.
pub fn rate(codec: &CodecQuality, observed: &Observation) -> Quality {
    let loss = observed.loss_percent.clamp(0.0, 100.0);
    let burst = observed.burst_ratio.max(1.0);
    let r = match codec.band {
        CodecBand::Narrow => {
            let model = EModel {
                ie: codec.ie,
                bpl: codec.bpl,
                ppl: loss,
                burst_r: burst,
                ta: observed.delay_ms,
                ..EModel::default()
            };
            model.rating().r
        }
        CodecBand::Wide => {
            let coding = effective_impairment(codec.ie, codec.bpl, loss, burst);
            (WIDEBAND_BEST - delay_impairment(observed.delay_ms) - coding) / 1.29
        }
    };
    let r = r.clamp(0.0, 100.0);
    Quality { r, mos: mos(r) }
}
