//! Measured costs of one call, registration and packet, with their origin.

use super::estimate::Estimate;
use crate::error::LabError;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Version of the file format.
pub const FORMAT: u32 = 1;

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

/// One cost.
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
    /// Number of samples; 0 for an assumption.
    pub samples: u64,
    /// The source of the figure.
    pub origin: String,
}

/// A file of costs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Costs {
    /// [`FORMAT`].
    pub format: u32,
    /// Version of the program that was measured.
    pub version: String,
    /// The machine.
    pub machine: String,
    /// The costs.
    pub cost: Vec<Cost>,
}

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
        if costs.format != FORMAT {
            return Err(bad(format!("format {}: expected {FORMAT}", costs.format)));
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
            if costs
                .cost
                .iter()
                .skip(place + 1)
                .any(|other| other.id == cost.id)
            {
                return Err(bad("occurs twice"));
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

    /// A cost by its identifier.
    pub fn find(&self, id: &str) -> Option<&Cost> {
        self.cost.iter().find(|cost| cost.id == id)
    }

    /// As [`Costs::find`].
    ///
    /// # Errors
    /// If it was not measured; the error names the remedy.
    pub fn get(&self, id: &str) -> Result<&Cost, LabError> {
        self.find(id).ok_or_else(|| {
            LabError::cannot_run(
                format!("no measured cost {id} (measured on: {})", self.machine),
                "measure it on your machine with hornwork lab datasheet --out DIR, and plan with --from DIR",
            )
        })
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
        }
        // Each cost has one source.
        let measured = Costs::parse("measured", MEASURED).unwrap();
        let others = Costs::parse("others", BUILT_IN).unwrap();
        assert!(others.cost.iter().all(|c| measured.find(&c.id).is_none()));
        assert_eq!(others.get("call.bypass.tls").unwrap_err().exit_code(), 3);
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
