//! The experiments that are part of the program.

/// Name and file of every built-in experiment, in order of name.
pub const BUILT_IN: &[(&str, &str)] = &[
    (
        "call-capacity",
        include_str!("../../../../scenarios/call-capacity.toml"),
    ),
    (
        "call-rate",
        include_str!("../../../../scenarios/call-rate.toml"),
    ),
    (
        "header-rules",
        include_str!("../../../../scenarios/header-rules.toml"),
    ),
    (
        "overload",
        include_str!("../../../../scenarios/overload.toml"),
    ),
    (
        "registrations",
        include_str!("../../../../scenarios/registrations.toml"),
    ),
    (
        "rtp-streams",
        include_str!("../../../../scenarios/rtp-streams.toml"),
    ),
    (
        "shielding",
        include_str!("../../../../scenarios/shielding.toml"),
    ),
    (
        "small-network",
        include_str!("../../../../scenarios/small-network.toml"),
    ),
    (
        "standing-calls",
        include_str!("../../../../scenarios/standing-calls.toml"),
    ),
    (
        "volte-call-rate",
        include_str!("../../../../scenarios/volte-call-rate.toml"),
    ),
];

/// The file of a built-in experiment.
pub fn built_in(name: &str) -> Option<&'static str> {
    BUILT_IN
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, file)| *file)
}
