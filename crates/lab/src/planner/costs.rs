//! Measured costs of one call, registration and packet, with their origin.

use super::curve::CostCurve;
use super::estimate::Estimate;
use crate::error::LabError;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Version of the file format: since 2 a CPU time may have several points, each with its load.
pub const FORMAT: u32 = 2;
/// The oldest version that is read.
const OLDEST_FORMAT: u32 = 1;

/// Name of the costs file that `lab datasheet` writes beside its page.
pub const FILE_NAME: &str = "costs.toml";

/// The built-in costs that the stored data sheet does not have.
const BUILT_IN: &str = include_str!("costs.toml");
/// Those of the stored data sheet (`docs/datasheet.json`); `cargo xtask docs` makes the file.
const MEASURED: &str = include_str!("measured.toml");

/// Identifiers of costs, and the unit of each.
pub const KNOWN: [(&str, &str); 19] = [
    ("call.bypass.udp", "us"),
    ("call.bypass.tls", "us"),
    ("call.anchored.udp", "us"),
    ("call.anchored.tls", "us"),
    ("registration.udp", "us"),
    ("registration.tls", "us"),
    ("refresh.udp", "us"),
    ("refresh.tls", "us"),
    ("packet.none", "us"),
    ("packet.srtp", "us"),
    ("packet.esp", "us"),
    ("memory.call.bypass", "bytes"),
    ("memory.call.anchored", "bytes"),
    ("memory.tls_side", "bytes"),
    ("memory.srtp", "bytes"),
    ("memory.registration", "bytes"),
    ("memory.process", "bytes"),
    ("bytes.call", "bytes"),
    ("bytes.registration", "bytes"),
];

/// One cost; a CPU time may have several, measured at different loads of a thread.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cost {
    /// One of [`KNOWN`].
    pub id: String,
    /// The value.
    pub value: f64,
    /// Lower end of its interval.
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// `us` of CPU time, or `bytes`.
    pub unit: String,
    /// Calls, registrations or packets a second at one thread, at which a CPU time was measured; `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<f64>,
    /// Number of samples; 0 for an assumption.
    pub samples: u64,
    /// The source of the figure.
    pub origin: String,
}

/// A file of costs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Costs {
    /// [`FORMAT`], or an older one.
    pub format: u32,
    /// Version of the program that was measured.
    pub version: String,
    /// The machine.
    pub machine: String,
    /// The costs.
    pub cost: Vec<Cost>,
}

/// The cost that is derived where it was not measured, and those that it is derived from.
const ANCHORED_TLS: &str = "call.anchored.tls";
const BASES: [&str; 3] = ["call.anchored.udp", "call.bypass.udp", "call.bypass.tls"];

fn unit_of(id: &str) -> Option<&'static str> {
    let known = KNOWN.iter().find(|(known, _)| *known == id);
    known.map(|(_, unit)| *unit)
}

impl Costs {
    /// The built-in costs: those of the stored data sheet, and the others.
    ///
    /// # Errors
    /// If a built-in file is broken.
    pub fn built_in() -> Result<Costs, LabError> {
        let mut costs = Costs::parse("the built-in costs of the data sheet", MEASURED)?;
        costs.derive();
        let others = Costs::parse("the built-in costs", BUILT_IN)?;
        for cost in others.cost {
            if costs.find(&cost.id).is_none() {
                costs.cost.push(cost);
            }
        }
        Ok(costs)
    }

    /// Reads a file; costs that it does not have are those of the built-in file only if they are assumptions or memory,
    /// which are no CPU times of another machine.
    ///
    /// # Errors
    /// If the file cannot be read, or contains a mistake.
    pub fn read(path: &Path) -> Result<Costs, LabError> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| LabError::bad_input(format!("{}: {error}", path.display())))?;
        let mut costs = Costs::parse(&path.display().to_string(), &text)?;
        for cost in Costs::built_in()?.cost {
            if cost.unit == "bytes" && costs.find(&cost.id).is_none() {
                costs.cost.push(Cost {
                    origin: format!("built in, not in {}: {}", path.display(), cost.origin),
                    ..cost
                });
            }
        }
        Ok(costs)
    }

    /// Checks the text of a file; `origin` names it in messages.
    ///
    /// # Errors
    /// A mistake, with the identifier of the cost.
    pub fn parse(origin: &str, text: &str) -> Result<Costs, LabError> {
        let bad = |why: String| LabError::bad_input(format!("{origin}: {why}"));
        let costs: Costs = toml_edit::de::from_str(text).map_err(|error| bad(error.to_string()))?;
        if !(OLDEST_FORMAT..=FORMAT).contains(&costs.format) {
            return Err(bad(format!(
                "format {}: expected {OLDEST_FORMAT} to {FORMAT}",
                costs.format
            )));
        }
        for (place, cost) in costs.cost.iter().enumerate() {
            let bad = |why: &str| bad(format!("cost {:?}: {why}", cost.id));
            let Some(unit) = unit_of(&cost.id) else {
                let names: Vec<&str> = KNOWN.iter().map(|(name, _)| *name).collect();
                return Err(bad(&format!("unknown; known costs: {}", names.join(", "))));
            };
            if cost.unit != unit {
                return Err(bad(&format!("unit {:?}: expected {unit:?}", cost.unit)));
            }
            let ends = [cost.low, cost.value, cost.high];
            if !ends.iter().all(|end| end.is_finite() && *end >= 0.0) || !ends.is_sorted() {
                return Err(bad("expected 0 <= low <= value <= high"));
            }
            if cost.load.is_some() && cost.unit != "us" {
                return Err(bad("load: only a CPU time has one"));
            }
            if !cost.load.is_none_or(|load| load.is_finite() && load > 0.0) {
                return Err(bad("load: expected a number above 0"));
            }
            let others = costs.cost.iter().skip(place + 1);
            for other in others.filter(|other| other.id == cost.id) {
                match (cost.load, other.load) {
                    (Some(one), Some(other)) if one.total_cmp(&other).is_ne() => {}
                    (Some(_), Some(_)) => return Err(bad("occurs twice at one load")),
                    _ => {
                        return Err(bad("occurs twice: each of several points needs its load"));
                    }
                }
            }
        }
        Ok(costs)
    }

    /// The file as text.
    ///
    /// # Errors
    /// If a value cannot be written as TOML.
    pub fn text(&self) -> Result<String, LabError> {
        toml_edit::ser::to_string_pretty(self)
            .map_err(|error| LabError::bad_input(format!("costs: {error}")))
    }

    /// Adds the CPU time of an anchored call over TLS where it was not measured: anchoring takes as much with TLS as
    /// without, on a thread that is as busy.
    pub fn derive(&mut self) {
        if self.find(ANCHORED_TLS).is_some() {
            return;
        }
        let [Some(anchored), Some(bypass), Some(tls)] = BASES.map(|id| self.curve(id).ok()) else {
            return;
        };
        for point in tls.points() {
            let busy = point.load.map(|load| load * point.value * 1e-6);
            let [with, without] = [&anchored, &bypass].map(|of| of.at_busy(busy.unwrap_or(0.0)));
            let more = (with.value - without.value).max(0.0);
            let value = point.value + more;
            let cost = Cost {
                id: ANCHORED_TLS.to_owned(),
                value,
                low: point.low,
                high: point.high + (with.high - without.low).max(more),
                // As busy as the thread with media bypass, it carries fewer calls.
                load: busy.filter(|_| value > 0.0).map(|busy| busy / value * 1e6),
                origin: format!("{} + {} - {}", BASES[2], BASES[0], BASES[1]),
                ..point.clone()
            };
            let same = |other: &Cost| other.id == cost.id && other.load == cost.load;
            if !self.cost.iter().any(same) {
                self.cost.push(cost);
            }
        }
    }

    /// A cost by its identifier; of several points that of the file's first.
    pub fn find(&self, id: &str) -> Option<&Cost> {
        self.cost.iter().find(|cost| cost.id == id)
    }

    /// As [`Costs::find`].
    ///
    /// # Errors
    /// If it was not measured; the error names the remedy.
    pub fn get(&self, id: &str) -> Result<&Cost, LabError> {
        self.find(id).ok_or_else(|| self.not_measured(id))
    }

    /// A CPU time over the load of a thread.
    ///
    /// # Errors
    /// As for [`Costs::get`].
    pub fn curve(&self, id: &str) -> Result<CostCurve, LabError> {
        let points = self.cost.iter().filter(|cost| cost.id == id);
        CostCurve::new(points.cloned().collect()).ok_or_else(|| self.not_measured(id))
    }

    fn not_measured(&self, id: &str) -> LabError {
        LabError::cannot_run(
            format!("no measured cost {id} (measured on: {})", self.machine),
            "measure it on your machine with hornwork lab datasheet --out DIR, and plan with --from DIR",
        )
    }
}

impl Cost {
    /// The value with its interval.
    pub fn estimate(&self) -> Estimate {
        Estimate {
            value: self.value,
            low: self.low,
            high: self.high,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_file_is_read_and_written() {
        let costs = Costs::built_in().unwrap();
        assert_eq!(
            Costs::parse("again", &costs.text().unwrap()).unwrap(),
            costs
        );
        assert!(costs.cost.iter().all(|cost| !cost.origin.is_empty()));
        for (id, unit) in KNOWN {
            let cost = costs.get(id).unwrap();
            assert_eq!(cost.unit, unit);
            assert!(!costs.curve(id).unwrap().points().is_empty());
        }
        // Each cost has one source.
        let measured = Costs::parse("measured", MEASURED).unwrap();
        let others = Costs::parse("others", BUILT_IN).unwrap();
        assert!(others.cost.iter().all(|c| measured.find(&c.id).is_none()));
        // The costs of a data sheet have the load at which they were measured.
        let times = || measured.cost.iter().filter(|cost| cost.unit == "us");
        assert!(times().count() > 0 && times().all(|cost| cost.load.is_some()));
        assert_eq!(others.get("call.bypass.tls").unwrap_err().exit_code(), 3);
    }

    const HEAD: &str = "format = 2\nversion = \"1\"\nmachine = \"mine\"\n";

    /// A CPU time as a file has it; a load of 0 is left out.
    fn entry(id: &str, value: f64, load: f64) -> String {
        let (low, high) = (value * 0.9, value * 1.2);
        let ends = format!("value = {value:?}\nlow = {low:?}\nhigh = {high:?}");
        let load = match load {
            0.0 => String::new(),
            load => format!("load = {load:?}\n"),
        };
        format!(
            "[[cost]]\nid = {id:?}\n{ends}\nunit = \"us\"\n{load}samples = 3\norigin = \"a run\"\n"
        )
    }

    #[test]
    fn cost_has_several_points_or_one_without_a_load() {
        let two = [
            HEAD,
            &entry("call.bypass.udp", 148.0, 500.0),
            &entry("call.bypass.udp", 43.0, 11_700.0),
        ];
        let costs = Costs::parse("mine", &two.concat()).unwrap();
        let curve = costs.curve("call.bypass.udp").unwrap();
        assert_eq!(curve.points().len(), 2);
        assert!((50.0..100.0).contains(&curve.at_busy(0.3).value));
        assert_eq!(
            Costs::parse("again", &costs.text().unwrap()).unwrap(),
            costs
        );
        // A file of the former format.
        let old = HEAD.replace("format = 2", "format = 1") + &entry("call.bypass.udp", 148.0, 0.0);
        let costs = Costs::parse("old", &old).unwrap();
        assert!((costs.curve("call.bypass.udp").unwrap().at_busy(0.3).value - 148.0).abs() < 1e-9);
        assert!(!costs.text().unwrap().contains("load"));
        assert_eq!(costs.curve("call.bypass.tls").unwrap_err().exit_code(), 3);
    }

    #[test]
    fn mistakes_of_points_are_named() {
        let with = |entries: &[String]| {
            let text = format!("{HEAD}{}", entries.concat());
            Costs::parse("mine", &text).unwrap_err().to_string()
        };
        let bytes = entry("memory.srtp", 5.0, 3.0).replace("\"us\"", "\"bytes\"");
        let of = |load| entry("call.bypass.udp", 50.0, load);
        for (entries, word) in [
            (vec![of(500.0), of(500.0)], "twice at one load"),
            (vec![of(500.0), of(0.0)], "needs its load"),
            (vec![of(0.0), of(0.0)], "needs its load"),
            (vec![of(-1.0)], "above 0"),
            (vec![of(f64::INFINITY)], "above 0"),
            (vec![bytes], "only a CPU time"),
        ] {
            let error = with(&entries);
            assert!(error.contains(word) && error.contains("mine"), "{error}");
        }
    }

    #[test]
    fn anchored_call_over_tls_is_derived_on_a_thread_that_is_as_busy() {
        let text = [
            HEAD,
            &entry("call.bypass.udp", 150.0, 500.0),
            &entry("call.bypass.udp", 40.0, 10_000.0),
            &entry("call.anchored.udp", 200.0, 500.0),
            &entry("call.anchored.udp", 80.0, 6_000.0),
            &entry("call.bypass.tls", 160.0, 500.0),
            &entry("call.bypass.tls", 25.0, 20_000.0),
        ];
        let mut costs = Costs::parse("mine", &text.concat()).unwrap();
        costs.derive();
        let derived = costs.curve("call.anchored.tls").unwrap();
        let [slow, fast] = derived.points() else {
            panic!("{derived:?}");
        };
        let near = |found: f64, wanted: f64| assert!((found - wanted).abs() < 1e-6, "{found}");
        // 0.08 of a thread: anchored calls are still at their lowest load, those with bypass just above it.
        let bypass = costs.curve("call.bypass.udp").unwrap().at_busy(0.08);
        near(slow.value, 160.0 + 200.0 - bypass.value);
        near(slow.load.unwrap(), 0.08 / slow.value * 1e6);
        // Half of a thread: both at their highest load.
        near(fast.value, 25.0 + 80.0 - 40.0);
        near(fast.load.unwrap(), 0.5 / 65.0 * 1e6);
        assert!(fast.low <= fast.value && fast.value <= fast.high);
        // It can be written and read again, and is not derived twice.
        let again = Costs::parse("again", &costs.text().unwrap()).unwrap();
        assert_eq!(again, costs);
        costs.derive();
        assert_eq!(again, costs);
    }

    #[test]
    fn mistakes_name_the_cost() {
        let text = BUILT_IN.replace("value = 16384.0", "value = 99999.0");
        let error = Costs::parse("mine", &text).unwrap_err().to_string();
        assert!(
            error.contains("mine") && error.contains("memory.tls_side"),
            "{error}"
        );
        for (from, to) in [
            ("id = \"memory.srtp\"", "id = \"memory.other\""),
            ("id = \"memory.srtp\"", "id = \"memory.tls_side\""),
            ("format = 1", "format = 7"),
            ("value = 4096.0", "value = nan"),
            ("unit = \"bytes\"", "unit = \"us\""),
        ] {
            assert!(BUILT_IN.contains(from), "{from}");
            let error = Costs::parse("mine", &BUILT_IN.replacen(from, to, 1)).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{from}");
        }
    }
}
