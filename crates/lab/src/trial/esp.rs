//! Measurements of ESP itself: no calls, no border.

use super::{Outcomes, Trial};
use crate::error::LabError;
use crate::esp::{self, WireMedium};
use crate::experiment::EspMeasurement;
use net::Clock;

/// Runs a trial; the medium matters for measurements on the wire.
pub(super) fn run(trial: &Trial, medium: WireMedium) -> Result<Outcomes, LabError> {
    let plan = trial.experiment.esp.as_ref();
    let plan = plan.ok_or_else(|| LabError::bad_input("no [esp]"))?;
    let clock = Clock::new();
    let (samples, remarks) = match plan.measure {
        EspMeasurement::PacketCost => esp::packet_cost(plan, trial.seed)?,
        EspMeasurement::Bandwidth => esp::bandwidth(plan, trial.seed, medium)?,
        EspMeasurement::WithoutUdp => esp::without_udp(plan, trial.seed)?,
        EspMeasurement::Direct => esp::direct(plan, trial.seed, medium != WireMedium::Memory)?,
    };
    Ok(Outcomes {
        measures: samples.records(trial.number),
        // Counted in memory, the same seed gives the same record.
        seconds: match (plan.measure, medium) {
            (EspMeasurement::Bandwidth, WireMedium::Memory) => 0.0,
            _ => clock.now().0 as f64 / 1e9,
        },
        remarks,
        ..Outcomes::default()
    })
}
