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
        "call-rate-anchored",
        include_str!("../../../../scenarios/call-rate-anchored.toml"),
    ),
    (
        "call-rate-baseline",
        include_str!("../../../../scenarios/call-rate-baseline.toml"),
    ),
    (
        "call-rate-media-bypass",
        include_str!("../../../../scenarios/call-rate-media-bypass.toml"),
    ),
    (
        "call-rate-tls",
        include_str!("../../../../scenarios/call-rate-tls.toml"),
    ),
    (
        "call-rate-volte",
        include_str!("../../../../scenarios/call-rate-volte.toml"),
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
        "re-registration-rate",
        include_str!("../../../../scenarios/re-registration-rate.toml"),
    ),
    (
        "re-registration-rate-tls",
        include_str!("../../../../scenarios/re-registration-rate-tls.toml"),
    ),
    (
        "registration-rate",
        include_str!("../../../../scenarios/registration-rate.toml"),
    ),
    (
        "registration-rate-tls",
        include_str!("../../../../scenarios/registration-rate-tls.toml"),
    ),
    (
        "registrations",
        include_str!("../../../../scenarios/registrations.toml"),
    ),
    (
        "registrations-million",
        include_str!("../../../../scenarios/registrations-million.toml"),
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
        "standing-call-capacity",
        include_str!("../../../../scenarios/standing-call-capacity.toml"),
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
