//! The narrow-band E-model of ITU-T G.107 (clauses 7.1 to 7.6, Annex B), all parameters.

/// The input parameters, named as in G.107 Table 1; [`Default`] gives that table's values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EModel {
    /// Send loudness rating, dB.
    pub slr: f64,
    /// Receive loudness rating, dB.
    pub rlr: f64,
    /// Sidetone masking rating, dB.
    pub stmr: f64,
    /// D-value of the telephone at the send side.
    pub ds: f64,
    /// D-value of the telephone at the receive side; the listener sidetone rating is STMR + Dr.
    pub dr: f64,
    /// Talker echo loudness rating, dB.
    pub telr: f64,
    /// Weighted echo path loss, dB.
    pub wepl: f64,
    /// Mean one-way delay of the echo path, ms.
    pub t: f64,
    /// Round-trip delay in a four-wire loop, ms.
    pub tr: f64,
    /// Absolute delay in echo-free connections, ms.
    pub ta: f64,
    /// Number of quantisation distortion units.
    pub qdu: f64,
    /// Equipment impairment factor.
    pub ie: f64,
    /// Packet-loss robustness factor.
    pub bpl: f64,
    /// Random packet-loss probability, percent.
    pub ppl: f64,
    /// Burst ratio.
    pub burst_r: f64,
    /// Circuit noise referred to the 0 dBr point, dBm0p.
    pub nc: f64,
    /// Noise floor at the receive side, dBmp.
    pub nfor: f64,
    /// Room noise at the send side, dB(A).
    pub ps: f64,
    /// Room noise at the receive side, dB(A).
    pub pr: f64,
    /// Advantage factor.
    pub a: f64,
}

impl Default for EModel {
    fn default() -> Self {
        EModel {
            slr: 8.0,
            rlr: 2.0,
            stmr: 15.0,
            ds: 3.0,
            dr: 3.0,
            telr: 65.0,
            wepl: 110.0,
            t: 0.0,
            tr: 0.0,
            ta: 0.0,
            qdu: 1.0,
            ie: 0.0,
            bpl: 4.3,
            ppl: 0.0,
            burst_r: 1.0,
            nc: -70.0,
            nfor: -64.0,
            ps: 35.0,
            pr: 35.0,
            a: 0.0,
        }
    }
}

/// The rating and its parts: R = Ro - Is - Id - Ie-eff + A.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rating {
    /// Transmission rating factor.
    pub r: f64,
    /// Basic signal-to-noise ratio.
    pub ro: f64,
    /// Simultaneous impairment factor.
    pub is: f64,
    /// Delay impairment factor.
    pub id: f64,
    /// The part of `id` due to absolute delay.
    pub idd: f64,
    /// Effective equipment impairment factor.
    pub ie_eff: f64,
}

fn db_sum(levels: &[f64]) -> f64 {
    10.0 * levels
        .iter()
        .map(|level| 10f64.powf(level / 10.0))
        .sum::<f64>()
        .log10()
}

/// The smooth maximum `(1 + x^n)^(1/n)` that G.107 uses throughout.
fn knee(x: f64, n: f64) -> f64 {
    (1.0 + x.powf(n)).powf(1.0 / n)
}

impl EModel {
    /// The rating (clause 7.1).
    pub fn rating(&self) -> Rating {
        let no = self.noise();
        let ro = 15.0 - 1.5 * (self.slr + no);
        let ist = self.sidetone_impairment();
        let is = self.loudness_impairment(no) + ist + self.quantising_impairment(ro);
        let idd = delay_impairment(self.ta);
        let id = self.talker_echo_impairment(no, ist) + self.listener_echo_impairment(ro) + idd;
        let ie_eff = effective_impairment(self.ie, self.bpl, self.ppl, self.burst_r);
        Rating {
            r: ro - is - id - ie_eff + self.a,
            ro,
            is,
            id,
            idd,
            ie_eff,
        }
    }

    /// Sum of all noise at the 0 dBr point (clause 7.2).
    fn noise(&self) -> f64 {
        let olr = self.slr + self.rlr;
        let nos =
            self.ps - self.slr - self.ds - 100.0 + 0.004 * (self.ps - olr - self.ds - 14.0).powi(2);
        let listener_sidetone = self.stmr + self.dr;
        let pre = self.pr + 10.0 * (1.0 + 10f64.powf((10.0 - listener_sidetone) / 10.0)).log10();
        let nor = self.rlr - 121.0 + pre + 0.008 * (pre - 35.0).powi(2);
        db_sum(&[self.nc, nos, nor, self.nfor + self.rlr])
    }

    /// Too low overall loudness rating (clause 7.3.1).
    fn loudness_impairment(&self, no: f64) -> f64 {
        let x = (self.slr + self.rlr + 0.2 * (64.0 + no - self.rlr)) / 8.0;
        20.0 * (knee(x, 8.0) - x)
    }

    /// Non-optimum sidetone (clause 7.3.2).
    fn sidetone_impairment(&self) -> f64 {
        let echo = (-self.t / 4.0).exp() * 10f64.powf(-self.telr / 10.0);
        let stmro = -10.0 * (10f64.powf(-self.stmr / 10.0) + echo).log10();
        // Even exponents imply the absolute value; odd ones need it for ratings below their centre.
        12.0 * knee(((stmro - 13.0) / 6.0).abs(), 8.0)
            - 28.0 * knee(((stmro + 1.0) / 19.4).abs(), 35.0)
            - 13.0 * knee(((stmro - 3.0) / 33.0).abs(), 13.0)
            + 29.0
    }

    /// Quantising distortion (clause 7.3.3).
    fn quantising_impairment(&self, ro: f64) -> f64 {
        let q = 37.0 - 15.0 * self.qdu.log10();
        let g = 1.07 + 0.258 * q + 0.0602 * q * q;
        let y = (ro - 100.0) / 15.0 + 46.0 / 8.4 - g / 9.0;
        let z = 46.0 / 30.0 - g / 40.0;
        15.0 * (1.0 + 10f64.powf(y) + 10f64.powf(z)).log10()
    }

    /// Talker echo (clause 7.4).
    fn talker_echo_impairment(&self, no: f64, ist: f64) -> f64 {
        if self.t < 1.0 {
            return 0.0;
        }
        let mut terv = self.telr - 40.0 * ((1.0 + self.t / 10.0) / (1.0 + self.t / 150.0)).log10()
            + 6.0 * (-0.3 * self.t * self.t).exp();
        if self.stmr < 9.0 {
            terv += ist / 2.0;
        }
        let roe = -1.5 * (no - self.rlr);
        let re = 80.0 + 2.5 * (terv - 14.0);
        let half = (roe - re) / 2.0;
        let idte = (half + (half * half + 100.0).sqrt() - 1.0) * (1.0 - (-self.t).exp());
        if self.stmr > 20.0 {
            (idte * idte + ist * ist).sqrt()
        } else {
            idte
        }
    }

    /// Listener echo (clause 7.4).
    fn listener_echo_impairment(&self, ro: f64) -> f64 {
        let rle = 10.5 * (self.wepl + 7.0) * (self.tr + 1.0).powf(-0.25);
        let half = (ro - rle) / 2.0;
        half + (half * half + 169.0).sqrt()
    }
}

/// Impairment by absolute delay of `ta` milliseconds (Idd, clause 7.4).
pub fn delay_impairment(ta: f64) -> f64 {
    if ta <= 100.0 {
        return 0.0;
    }
    let x = (ta / 100.0).log2();
    25.0 * (knee(x, 6.0) - 3.0 * knee(x / 3.0, 6.0) + 2.0)
}

/// Effective equipment impairment under packet loss of `ppl` percent (clause 7.5).
pub fn effective_impairment(ie: f64, bpl: f64, ppl: f64, burst_r: f64) -> f64 {
    if ppl <= 0.0 {
        return ie;
    }
    ie + (95.0 - ie) * ppl / (ppl / burst_r.max(f64::MIN_POSITIVE) + bpl)
}

/// Mean opinion score of a rating (Annex B, clause B.4), never below 1: the polynomial dips under it for R below 6.5.
pub fn mos(r: f64) -> f64 {
    if r <= 0.0 {
        1.0
    } else if r >= 100.0 {
        4.5
    } else {
        (1.0 + 0.035 * r + r * (r - 60.0) * (100.0 - r) * 7e-6).max(1.0)
    }
}
