//! Preconditions of one medium in a user agent: the status table of RFC 3312 section 5.
//!
//! No IO: the input is the peer's lines, the output our lines and whether the called user may be alerted. Caller and
//! callee each keep one table for each medium, and send no 180 and no 2xx before [`Preconditions::are_met`].

use std::fmt;
use wire::sdp::{DirectionTag, Precondition, QOS, StatusType, Strength};

/// The option tag (RFC 3312 section 11).
pub const PRECONDITION: &[u8] = b"precondition";
/// Status of a refusal (RFC 3312 section 8).
pub const PRECONDITION_FAILURE: u16 = 580;

/// A mandatory precondition of the peer that cannot be met: refuse with [`PRECONDITION_FAILURE`] and this line in the
/// description (RFC 3312 section 8).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unmet {
    /// `a=des` with `failure` or `unknown`, without line end.
    pub line: String,
}

impl fmt::Display for Unmet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "precondition cannot be met: {}", self.line)
    }
}

impl std::error::Error for Unmet {}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Row {
    /// Whether either side has mentioned it.
    used: bool,
    current: DirectionTag,
    strength: Strength,
    desired: DirectionTag,
}

impl Row {
    fn is_met(&self) -> bool {
        self.strength != Strength::Mandatory || self.current.covers(self.desired)
    }
}

/// Quality of service as a precondition of one medium, from our point of view.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Preconditions {
    end_to_end: Row,
    local: Row,
    remote: Row,
    /// The peer requests confirmation when our side has reached this (section 7).
    to_confirm: Option<DirectionTag>,
    /// We request confirmation when the peer's side has reached this.
    requested_confirmation: Option<DirectionTag>,
}

impl Preconditions {
    /// An empty table: for a callee, which fills it from the offer.
    pub fn none() -> Preconditions {
        Preconditions::default()
    }

    /// The table of a caller: resources desired in both directions on our access network and on the peer's, none
    /// reserved. With [`Strength::Mandatory`] the peer does not alert before they are available.
    pub fn for_caller(local: Strength, remote: Strength) -> Preconditions {
        let row = |strength| Row {
            used: true,
            current: DirectionTag::NONE,
            strength,
            desired: DirectionTag::BOTH,
        };
        Preconditions {
            local: row(local),
            remote: row(remote),
            ..Preconditions::default()
        }
    }

    /// Whether either side has mentioned preconditions.
    pub fn is_used(&self) -> bool {
        self.rows().any(|(_, row)| row.used)
    }

    fn rows(&self) -> impl Iterator<Item = (StatusType, &Row)> {
        [
            (StatusType::EndToEnd, &self.end_to_end),
            (StatusType::Local, &self.local),
            (StatusType::Remote, &self.remote),
        ]
        .into_iter()
    }

    fn row(&mut self, status: StatusType) -> &mut Row {
        match status {
            StatusType::EndToEnd => &mut self.end_to_end,
            StatusType::Local => &mut self.local,
            StatusType::Remote => &mut self.remote,
        }
    }

    /// Applies the peer's lines of an offer or of an answer (sections 5.1 and 5.2), with statuses and directions turned
    /// to our point of view. The peer's statements about its own side are accepted, those about our side are not. The
    /// peer can raise a strength but not lower it.
    ///
    /// # Errors
    /// [`Unmet`] if the peer requires something other than quality of service, or reports a failure. The other lines
    /// are applied all the same.
    pub fn apply_remote<'a>(
        &mut self,
        lines: impl IntoIterator<Item = Precondition<'a>>,
    ) -> Result<(), Unmet> {
        let mut unmet = None;
        for line in lines {
            match line {
                line if !line.kind().eq_ignore_ascii_case(QOS) => {
                    if let Precondition::Desired {
                        kind,
                        strength: Strength::Mandatory,
                        status,
                        reach,
                    } = line
                    {
                        unmet = unmet.or(Some(desired_line(
                            kind,
                            Strength::Unknown,
                            status.reversed(),
                            reach.reversed(),
                        )));
                    }
                }
                Precondition::Current { status, reach, .. } => {
                    let reach = reach.reversed();
                    let row = self.row(status.reversed());
                    row.used = true;
                    match status {
                        StatusType::Local => row.current = reach,
                        StatusType::EndToEnd => row.current = row.current.with(reach),
                        StatusType::Remote => {}
                    }
                }
                Precondition::Desired {
                    strength: strength @ (Strength::Failure | Strength::Unknown),
                    status,
                    reach,
                    ..
                } => {
                    let line = desired_line(QOS, strength, status.reversed(), reach.reversed());
                    unmet = unmet.or(Some(line));
                }
                Precondition::Desired {
                    strength,
                    status,
                    reach,
                    ..
                } => {
                    let row = self.row(status.reversed());
                    row.used = true;
                    if strength >= row.strength {
                        row.strength = strength;
                        row.desired = row.desired.with(reach.reversed());
                    }
                }
                Precondition::Confirm { status, reach, .. } => {
                    if status != StatusType::Local {
                        self.to_confirm = Some(reach.reversed());
                    }
                }
            }
        }
        match unmet {
            Some(line) => Err(Unmet { line }),
            None => Ok(()),
        }
    }

    /// Records that our access network has reserved resources in these directions.
    pub fn add_reserved(&mut self, reach: DirectionTag) {
        self.local.used = true;
        self.local.current = self.local.current.with(reach);
        if self.end_to_end.used {
            self.end_to_end.current = self.end_to_end.current.with(reach);
        }
    }

    /// Requires resources of our own side in both directions, independent of the peer's requirements.
    pub fn require_local(&mut self) {
        self.local = Row {
            used: true,
            current: self.local.current,
            strength: Strength::Mandatory,
            desired: DirectionTag::BOTH,
        };
    }

    /// Requests confirmation when the peer's side is ready (section 7), as long as it is not.
    pub fn request_confirmation(&mut self) {
        self.requested_confirmation = Some(DirectionTag::BOTH);
    }

    /// Whether every mandatory precondition is met: the called user may be alerted and the call answered (section 6).
    pub fn are_met(&self) -> bool {
        self.rows().all(|(_, row)| row.is_met())
    }

    /// Whether our side is ready.
    pub fn is_reserved(&self) -> bool {
        self.local.current.covers(self.local.desired)
    }

    /// Whether the peer's side is required and not ready yet.
    pub fn waits_for_peer(&self) -> bool {
        !self.remote.is_met()
    }

    /// Whether our side is ready and the peer has requested confirmation (section 7), which our next description
    /// carries, in an UPDATE if no other request is due.
    pub fn owes_confirmation(&self) -> bool {
        self.to_confirm
            .is_some_and(|reach| self.local.current.covers(reach))
    }

    /// Whether there is a mandatory precondition: offers then require the option tag; otherwise they list it as
    /// supported (section 11).
    pub fn are_required(&self) -> bool {
        self.rows()
            .any(|(_, row)| row.used && row.strength == Strength::Mandatory)
    }

    /// The lines for our next description, offer or answer, each without line end. A pending confirmation is then done.
    pub fn next_lines(&mut self) -> Vec<String> {
        let mut lines = Vec::with_capacity(6);
        for (status, row) in self.rows().filter(|(_, row)| row.used) {
            let line = Precondition::Current {
                kind: QOS,
                status,
                reach: row.current,
            };
            lines.push(line.to_string());
        }
        for (status, row) in self.rows().filter(|(_, row)| row.used) {
            lines.push(desired_line(QOS, row.strength, status, row.desired));
        }
        if let Some(reach) = self
            .requested_confirmation
            .filter(|reach| self.remote.used && !self.remote.current.covers(*reach))
        {
            let line = Precondition::Confirm {
                kind: QOS,
                status: StatusType::Remote,
                reach,
            };
            lines.push(line.to_string());
        }
        if self.owes_confirmation() {
            self.to_confirm = None;
        }
        lines
    }

    /// The lines of a refusal because our own resources could not be reserved (section 8).
    pub fn refusal(&self) -> Vec<String> {
        self.rows()
            .filter(|(_, row)| row.used && !row.is_met())
            .map(|(status, row)| desired_line(QOS, Strength::Failure, status, row.desired))
            .collect()
    }
}

fn desired_line(
    kind: &[u8],
    strength: Strength,
    status: StatusType,
    reach: DirectionTag,
) -> String {
    let line = Precondition::Desired {
        kind,
        strength,
        status,
        reach,
    };
    line.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apply_remote(table: &mut Preconditions, lines: &[&str]) -> Result<(), Unmet> {
        let lines: Vec<_> = lines
            .iter()
            .map(|line| line.strip_prefix("a=").unwrap_or(line))
            .map(|line| line.split_once(':').expect("an attribute"))
            .filter_map(|(name, value)| Precondition::parse(name.as_bytes(), value.as_bytes()))
            .collect();
        table.apply_remote(lines)
    }

    fn exchange(from: &mut Preconditions, to: &mut Preconditions) -> Vec<String> {
        let lines = from.next_lines();
        let borrowed: Vec<&str> = lines.iter().map(String::as_str).collect();
        apply_remote(to, &borrowed).unwrap();
        lines
    }

    /// The call flow of RFC 3312 section 13.2 (segmented), with the lines that the document prints.
    #[test]
    fn segmented_preconditions_match_rfc_3312_example() {
        let mut caller = Preconditions::for_caller(Strength::Mandatory, Strength::Mandatory);
        let mut callee = Preconditions::none();
        assert_eq!(
            exchange(&mut caller, &mut callee),
            [
                "a=curr:qos local none",
                "a=curr:qos remote none",
                "a=des:qos mandatory local sendrecv",
                "a=des:qos mandatory remote sendrecv",
            ]
        );
        assert!(!callee.are_met() && callee.are_required());
        callee.request_confirmation();
        assert_eq!(
            exchange(&mut callee, &mut caller),
            [
                "a=curr:qos local none",
                "a=curr:qos remote none",
                "a=des:qos mandatory local sendrecv",
                "a=des:qos mandatory remote sendrecv",
                "a=conf:qos remote sendrecv",
            ]
        );
        // The caller reserves and owes a confirmation.
        assert!(!caller.owes_confirmation());
        caller.add_reserved(DirectionTag::BOTH);
        assert!(caller.owes_confirmation() && !caller.are_met());
        assert_eq!(
            exchange(&mut caller, &mut callee)[..2],
            ["a=curr:qos local sendrecv", "a=curr:qos remote none"]
        );
        assert!(!caller.owes_confirmation(), "confirmed once");
        assert!(!callee.are_met(), "its own side is not ready");
        callee.add_reserved(DirectionTag::BOTH);
        assert!(callee.are_met());
        assert_eq!(
            exchange(&mut callee, &mut caller)[..],
            [
                "a=curr:qos local sendrecv",
                "a=curr:qos remote sendrecv",
                "a=des:qos mandatory local sendrecv",
                "a=des:qos mandatory remote sendrecv",
            ],
            "no confirmation is pending"
        );
        assert!(caller.are_met());
    }

    #[test]
    fn directions_are_reversed_and_peer_statements_about_our_side_ignored() {
        let mut table = Preconditions::none();
        apply_remote(
            &mut table,
            &[
                "a=curr:qos local send",
                "a=curr:qos remote sendrecv",
                "a=des:qos mandatory local send",
                "a=des:qos optional remote sendrecv",
            ],
        )
        .unwrap();
        assert_eq!(
            table.next_lines(),
            [
                "a=curr:qos local none",
                "a=curr:qos remote recv",
                "a=des:qos optional local sendrecv",
                "a=des:qos mandatory remote recv",
            ]
        );
        assert!(table.are_met(), "an optional precondition does not block");
    }

    #[test]
    fn end_to_end_status_combines_both_sides() {
        let mut table = Preconditions::none();
        let offer = ["a=curr:qos e2e send", "a=des:qos mandatory e2e sendrecv"];
        apply_remote(&mut table, &offer).unwrap();
        assert!(!table.are_met());
        table.add_reserved(DirectionTag {
            send: true,
            recv: false,
        });
        assert!(table.are_met(), "the peer sends, and so do we: {table:?}");
    }

    #[test]
    fn strengths_are_raised_and_never_lowered() {
        let mut table = Preconditions::for_caller(Strength::Optional, Strength::Mandatory);
        let answer = [
            "a=curr:qos local none",
            "a=curr:qos remote none",
            "a=des:qos optional local sendrecv",
            "a=des:qos mandatory remote sendrecv",
        ];
        apply_remote(&mut table, &answer).unwrap();
        assert_eq!(
            table.next_lines()[2..],
            [
                "a=des:qos mandatory local sendrecv",
                "a=des:qos mandatory remote sendrecv",
            ]
        );
    }

    #[test]
    fn unsupported_preconditions_are_reported() {
        let mut table = Preconditions::none();
        let offer = [
            "a=curr:foo e2e none",
            "a=des:foo mandatory e2e sendrecv",
            "a=curr:qos local none",
            "a=des:qos optional local sendrecv",
        ];
        let unmet = apply_remote(&mut table, &offer).unwrap_err();
        assert_eq!(unmet.line, "a=des:foo unknown e2e sendrecv");
        assert!(table.is_used(), "the other lines are applied");
        let optional = ["a=curr:foo e2e none", "a=des:foo optional e2e sendrecv"];
        apply_remote(&mut Preconditions::none(), &optional).unwrap();
        let mut caller = Preconditions::for_caller(Strength::Mandatory, Strength::Mandatory);
        let refusal = ["a=des:qos failure local sendrecv"];
        let unmet = apply_remote(&mut caller, &refusal).unwrap_err();
        assert_eq!(unmet.line, "a=des:qos failure remote sendrecv");
        assert_eq!(
            caller.refusal(),
            [
                "a=des:qos failure local sendrecv",
                "a=des:qos failure remote sendrecv"
            ]
        );
    }

    #[test]
    fn without_preconditions_no_lines_and_no_wait() {
        let mut table = Preconditions::none();
        assert!(!table.is_used() && table.are_met() && !table.are_required());
        assert_eq!(table.next_lines(), [""; 0]);
        apply_remote(&mut table, &[]).unwrap();
        assert!(!table.is_used());
    }
}
