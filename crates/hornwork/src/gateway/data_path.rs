//! The choice between ESP in this program and in the kernel (XFRM).

use super::kernel::{KernelSas, kernel_selectors, kernel_suite, remove_earlier};
use crate::ike::cannot;
use config::{DataPath, GatewayKeySource, GatewaySpec};
use engine::Entropy;
use net::{Xfrm, XfrmRefusal, XfrmState};
use protect::esp::{EspKeys, EspSuite};
use protect::ike::proposed_suites;
use std::io;

/// Life of the association of a probe, seconds: its end is certain even if this program is killed.
const PROBE_SECONDS: u64 = 1;
const OTHER_PATH: &str = "set data_path = \"user\", or \"auto\"";

/// The place of ESP, with the reason.
pub(super) enum ChosenPath {
    /// The kernel, by this socket.
    Kernel(Xfrm),
    /// This program.
    User(String),
}

impl ChosenPath {
    /// Words for operators.
    pub(super) fn describe(&self) -> String {
        match self {
            ChosenPath::Kernel(_) => "the kernel (XFRM)".to_owned(),
            ChosenPath::User(reason) => format!("user space ({reason})"),
        }
    }

    /// Its name in events.
    pub(super) fn name(&self) -> &'static str {
        match self {
            ChosenPath::Kernel(_) => "kernel",
            ChosenPath::User(_) => "user",
        }
    }

    /// The associations in the kernel, if it is the place.
    ///
    /// # Errors
    /// The kernel refuses to remove associations of an earlier run, which are removed for both paths, or refuses a
    /// policy.
    pub(super) fn into_kernel(self, spec: &GatewaySpec) -> io::Result<Option<KernelSas>> {
        match self {
            ChosenPath::Kernel(xfrm) => KernelSas::new(xfrm, spec).map(Some).map_err(|error| {
                cannot(
                    format!("[gateway] ESP in the kernel: {error}"),
                    "remove associations and policies of earlier runs and of other programs for these networks (ip xfrm state, ip xfrm policy), or set data_path = \"user\"",
                )
            }),
            ChosenPath::User(_) => {
                // Policies of an earlier run would take the packets. A process without the right, or on a kernel
                // without XFRM, has left none.
                if let Ok(mut xfrm) = Xfrm::open() {
                    let _ = remove_earlier(&mut xfrm, spec.local.ip());
                }
                Ok(None)
            }
        }
    }
}

/// Chooses the place of ESP.
///
/// # Errors
/// `data_path = "kernel"` is not possible here.
pub(super) fn choose(spec: &GatewaySpec) -> io::Result<ChosenPath> {
    if spec.data_path == DataPath::User {
        return Ok(ChosenPath::User("data_path".to_owned()));
    }
    match kernel(spec) {
        Ok(xfrm) => Ok(ChosenPath::Kernel(xfrm)),
        Err((reason, _)) if spec.data_path == DataPath::Auto => Ok(ChosenPath::User(reason)),
        Err((reason, remedy)) => Err(cannot(
            format!("[gateway] data_path = \"kernel\": {reason}"),
            remedy,
        )),
    }
}

/// A socket to a kernel that can do all work of this gateway; otherwise the reason and a remedy.
fn kernel(spec: &GatewaySpec) -> Result<Xfrm, (String, &'static str)> {
    if let Some((key, reason)) = spec.needs_user_space() {
        return Err((format!("{key}: {reason}"), OTHER_PATH));
    }
    let GatewayKeySource::Ike(ike) = &spec.keys else {
        return Err(("there is no key exchange".to_owned(), OTHER_PATH));
    };
    for tunnel in &spec.tunnels {
        kernel_selectors(&tunnel.selectors)
            .map_err(|why| (format!("tunnel {}: {why}", tunnel.name), OTHER_PATH))?;
    }
    let mut xfrm = Xfrm::open().map_err(|error| {
        let remedy = "load the modules (modprobe xfrm_user esp4 esp6), or set data_path = \"user\"";
        (format!("the kernel has no XFRM ({error})"), remedy)
    })?;
    let mut entropy =
        net::entropy().map_err(|error| (format!("no random numbers ({error})"), OTHER_PATH))?;
    for proposal in &ike.proposals.esp {
        let suites = proposed_suites(proposal).ok_or_else(|| {
            (
                format!("{proposal} has algorithms that the kernel has not"),
                OTHER_PATH,
            )
        })?;
        for suite in suites {
            probe(&mut xfrm, spec, suite, &mut entropy)?;
        }
    }
    Ok(xfrm)
}

/// Lets the kernel take an association with these algorithms, and removes it.
fn probe(
    xfrm: &mut Xfrm,
    spec: &GatewaySpec,
    (suite, key_length): (EspSuite, usize),
    entropy: &mut Entropy,
) -> Result<(), (String, &'static str)> {
    let mut bytes = [0; 128];
    entropy.fill(&mut bytes);
    let (encryption, integrity) = bytes.split_at(key_length.min(bytes.len()));
    let integrity = integrity.get(..suite.integrity.key_length());
    let keys = EspKeys::new(encryption, integrity.unwrap_or_default());
    let algorithms = kernel_suite(suite, &keys).ok_or_else(|| {
        let remedy = "remove it from esp_proposals, or set data_path = \"user\"";
        (format!("the kernel has no name for {suite}"), remedy)
    })?;
    let state = XfrmState {
        // Beyond the reserved ones.
        spi: entropy.u32() | 0x100,
        ends: [spec.local.ip(); 2],
        ports: [spec.local.port(); 2],
        request: 0,
        suite: algorithms,
        replay_window: u32::try_from(spec.replay_window).unwrap_or(0),
        clears_dont_fragment: !spec.copies_dont_fragment,
        hard_bytes: None,
        hard_seconds: Some(PROBE_SECONDS),
    };
    xfrm.probe(&state).map_err(|error| {
        match XfrmRefusal::of(&error) {
            XfrmRefusal::NoEsp => (
                "the kernel has no ESP".to_owned(),
                match spec.local.is_ipv6() {
                    true => "load the module (modprobe esp6), or set data_path = \"user\"",
                    false => "load the module (modprobe esp4), or set data_path = \"user\"",
                },
            ),
            XfrmRefusal::NoAlgorithm => (
                format!("the kernel has no {suite}"),
                "load its module, remove it from esp_proposals, or set data_path = \"user\"",
            ),
            XfrmRefusal::NotPermitted => (
                format!("associations of the kernel were denied ({error}): CAP_NET_ADMIN"),
                "give the program CAP_NET_ADMIN (packaging/hornwork-gateway.conf), or set data_path = \"user\"",
            ),
            XfrmRefusal::Other => (format!("the kernel refuses {suite}: {error}"), OTHER_PATH),
        }
    })
}
