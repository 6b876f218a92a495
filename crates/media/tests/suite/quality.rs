//! The E-model against the figures in G.107 and against an independent implementation.

use media::quality::{
    CodecQuality, EModel, Observation, codec_quality, delay_impairment, mos, rate,
};
use serde_json::Value;

fn testdata(path: &str) -> Option<Value> {
    let root = std::env::var("HORNWORK_TESTDATA").unwrap_or_else(|_| {
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/testdata").into()
    });
    let Ok(text) = std::fs::read_to_string(format!("{root}/{path}")) else {
        println!("skipped: testdata absent");
        return None;
    };
    Some(serde_json::from_str(&text).expect("test data is JSON"))
}

fn number(value: &Value) -> f64 {
    value.as_f64().expect("a number")
}

fn close(got: f64, want: &Value, tolerance: f64, what: &str) {
    assert!(
        (got - number(want)).abs() <= tolerance,
        "{what}: {got} for {want}"
    );
}

#[test]
fn published_figures() {
    let rating = EModel::default().rating();
    assert!((rating.r - 93.2).abs() < 0.05 && (mos(rating.r) - 4.41).abs() < 0.005);
    for (r, score) in [
        (90.0, 4.34),
        (80.0, 4.03),
        (70.0, 3.60),
        (60.0, 3.10),
        (50.0, 2.58),
    ] {
        assert!((mos(r) - score).abs() < 0.01, "Table B.1, R {r}");
    }
    assert_eq!(
        (mos(-1.0), mos(0.0), mos(100.0), mos(120.0)),
        (1.0, 1.0, 4.5, 4.5)
    );
    assert_eq!(delay_impairment(100.0), 0.0);
}

#[test]
fn the_oracle() {
    let Some(oracle) = testdata("quality/emodel-published-and-basic.json") else {
        return;
    };
    let rows = oracle["computed"].as_array().expect("rows");
    assert!(rows.len() >= 48);
    for row in rows {
        let model = EModel {
            ie: number(&row["Ie"]),
            bpl: number(&row["Bpl"]),
            ppl: number(&row["Ppl"]),
            ta: number(&row["Ta"]),
            ..EModel::default()
        };
        let rating = model.rating();
        let name = row.to_string();
        close(rating.r, &row["R"], 0.01, &name);
        close(rating.ro, &row["Ro"], 0.01, &name);
        close(rating.is, &row["Is"], 0.01, &name);
        close(rating.id, &row["Id"], 0.01, &name);
        close(rating.idd, &row["Idd"], 0.01, &name);
        close(rating.ie_eff, &row["Ie_eff"], 0.01, &name);
        close(mos(rating.r), &row["MOS"], 0.01, &name);
    }
    let table = &oracle["published"]["Ie_Bpl_G113_AppI"];
    for (name, codec) in [
        ("G.711 without PLC (10 ms)", CodecQuality::G711_BARE),
        ("G.711 with Appendix I PLC (10 ms)", CodecQuality::G711),
        ("G.729A with VAD (20 ms)", CodecQuality::G729A_VAD),
        ("G.723.1 6.3 kbit/s with VAD (30 ms)", CodecQuality::G723_63),
        ("GSM EFR (20 ms)", CodecQuality::GSM_EFR),
    ] {
        close(codec.ie, &table[name][0], 0.0, name);
        close(codec.bpl, &table[name][1], 0.0, name);
    }
}

#[test]
fn loss_bursts_delay_and_echo_only_make_it_worse() {
    let base = Observation {
        loss_percent: 1.0,
        burst_ratio: 1.0,
        delay_ms: 50.0,
    };
    let worse = [
        Observation {
            loss_percent: 2.0,
            ..base
        },
        Observation {
            burst_ratio: 2.0,
            ..base
        },
        Observation {
            delay_ms: 250.0,
            ..base
        },
    ];
    for name in ["PCMU", "pcma", "G729", "G722", "OPUS", "G723"] {
        let codec = codec_quality(name).expect(name);
        let best = rate(codec, &base);
        for observed in &worse {
            let quality = rate(codec, observed);
            assert!(
                quality.r < best.r && quality.mos <= best.mos,
                "{name} {observed:?}"
            );
        }
    }
    let echo = EModel {
        t: 100.0,
        telr: 50.0,
        ..EModel::default()
    };
    assert!(echo.rating().r < EModel::default().rating().r);
    assert!(codec_quality("H264").is_none());
}

#[test]
fn extreme_input_stays_in_range() {
    for loss in [-5.0, 0.0, 150.0, f64::INFINITY] {
        for burst in [0.0, 1.0, 1e9] {
            let observed = Observation {
                loss_percent: loss,
                burst_ratio: burst,
                delay_ms: 1e6,
            };
            let quality = rate(&CodecQuality::OPUS, &observed);
            assert!((0.0..=100.0).contains(&quality.r) && (1.0..=4.5).contains(&quality.mos));
        }
    }
}
