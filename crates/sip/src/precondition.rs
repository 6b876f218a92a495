//! Preconditions of one medium as a user agent keeps them: the status table of RFC 3312 section 5.
//!
//! Pure: what the peer says goes in, what we say comes out, and whether the called user may be alerted. Who opens and who
//! takes a call keep one such table for each medium and let no 180 and no 2xx leave before [`Preconditions::are_met`].

use std::fmt;
use wire::sdp::{Precondition, QOS, Reach, StatusType, Strength};

/// The option tag (RFC 3312 section 11).
pub const PRECONDITION: &[u8] = b"precondition";
/// Status of a refusal (RFC 3312 section 8).
pub const PRECONDITION_FAILURE: u16 = 580;

/// A mandatory precondition of the peer's that cannot be met: refuse with [`PRECONDITION_FAILURE`] and this line in the
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
    /// Whether anybody has spoken of it.
    used: bool,
    current: Reach,
    strength: Strength,
    desired: Reach,
}

impl Row {
    fn is_met(&self) -> bool {
        self.strength != Strength::Mandatory || self.current.covers(self.desired)
    }
}

/// Quality of service as a precondition of one medium, seen from our side.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Preconditions {
    end_to_end: Row,
    local: Row,
    remote: Row,
    /// The peer wants to be told when our side has come so far (section 7).
    to_confirm: Option<Reach>,
    /// We want to be told when the peer's has.
    ask: Option<Reach>,
}

impl Preconditions {
    /// None yet: for a called side, which learns them from the offer.
    pub fn none() -> Preconditions {
        Preconditions::default()
    }

    /// What a caller begins with: resources wanted in both directions on our access network and on the peer's, nothing
    /// reserved. With [`Strength::Mandatory`] the peer will not alert before they are there.
    pub fn wanted(local: Strength, remote: Strength) -> Preconditions {
        let row = |strength| Row {
            used: true,
            current: Reach::NONE,
            strength,
            desired: Reach::BOTH,
        };
        Preconditions {
            local: row(local),
            remote: row(remote),
            ..Preconditions::default()
        }
    }

    /// Whether anybody has spoken of preconditions.
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

    /// Takes the peer's lines, of an offer or of an answer (sections 5.1 and 5.2). Statuses and directions are turned to
    /// our view. What the peer says of its own side holds, what it believes of ours does not; a strength is raised by the
    /// peer and never lowered.
    ///
    /// # Errors
    /// [`Unmet`] where the peer demands something other than quality of service, or says that it has failed; what could
    /// be taken is taken all the same.
    pub fn hear<'a>(
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

    /// Our own access network has the resources, in these directions.
    pub fn reserved(&mut self, reach: Reach) {
        self.local.used = true;
        self.local.current = self.local.current.with(reach);
        if self.end_to_end.used {
            self.end_to_end.current = self.end_to_end.current.with(reach);
        }
    }

    /// Our own side's resources are wanted in both directions, whatever the peer thinks of them.
    pub fn demand(&mut self) {
        self.local = Row {
            used: true,
            current: self.local.current,
            strength: Strength::Mandatory,
            desired: Reach::BOTH,
        };
    }

    /// From now on the peer is asked to tell when its side is ready (section 7), as long as it is not.
    pub fn ask_for_confirmation(&mut self) {
        self.ask = Some(Reach::BOTH);
    }

    /// Whether every mandatory precondition is met: the called user may be alerted and the call be answered (section 6).
    pub fn are_met(&self) -> bool {
        self.rows().all(|(_, row)| row.is_met())
    }

    /// Whether our side is ready.
    pub fn is_reserved(&self) -> bool {
        self.local.current.covers(self.local.desired)
    }

    /// Whether the peer's side is demanded and not ready yet.
    pub fn waits_for_peer(&self) -> bool {
        !self.remote.is_met()
    }

    /// Whether the peer waits to be told that our side is ready, which it is (section 7): the next description of ours,
    /// in an UPDATE if nothing else is due, tells it.
    pub fn owes_confirmation(&self) -> bool {
        self.to_confirm
            .is_some_and(|wanted| self.local.current.covers(wanted))
    }

    /// Whether a mandatory one is wanted: then offers require the option tag, else they say that it is supported
    /// (section 11).
    pub fn are_required(&self) -> bool {
        self.rows()
            .any(|(_, row)| row.used && row.strength == Strength::Mandatory)
    }

    /// The lines for the next description of ours, offer or answer, each without line end. What it says has been said then.
    pub fn speak(&mut self) -> Vec<String> {
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
            .ask
            .filter(|wanted| self.remote.used && !self.remote.current.covers(*wanted))
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

    /// The lines of a refusal because our own resources could not be had (section 8).
    pub fn refusal(&self) -> Vec<String> {
        self.rows()
            .filter(|(_, row)| row.used && !row.is_met())
            .map(|(status, row)| desired_line(QOS, Strength::Failure, status, row.desired))
            .collect()
    }
}

fn desired_line(kind: &[u8], strength: Strength, status: StatusType, reach: Reach) -> String {
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

    fn hear(table: &mut Preconditions, lines: &[&str]) -> Result<(), Unmet> {
        let lines: Vec<_> = lines
            .iter()
            .map(|line| line.strip_prefix("a=").unwrap_or(line))
            .map(|line| line.split_once(':').expect("an attribute"))
            .filter_map(|(name, value)| Precondition::parse(name.as_bytes(), value.as_bytes()))
            .collect();
        table.hear(lines)
    }

    fn tell(from: &mut Preconditions, to: &mut Preconditions) -> Vec<String> {
        let lines = from.speak();
        let borrowed: Vec<&str> = lines.iter().map(String::as_str).collect();
        hear(to, &borrowed).unwrap();
        lines
    }

    /// The call flow of RFC 3312 section 13.2 (segmented), with the lines that the document prints.
    #[test]
    fn segmented_preconditions_as_the_document_has_them() {
        let mut caller = Preconditions::wanted(Strength::Mandatory, Strength::Mandatory);
        let mut callee = Preconditions::none();
        assert_eq!(
            tell(&mut caller, &mut callee),
            [
                "a=curr:qos local none",
                "a=curr:qos remote none",
                "a=des:qos mandatory local sendrecv",
                "a=des:qos mandatory remote sendrecv",
            ]
        );
        assert!(!callee.are_met() && callee.are_required());
        callee.ask_for_confirmation();
        assert_eq!(
            tell(&mut callee, &mut caller),
            [
                "a=curr:qos local none",
                "a=curr:qos remote none",
                "a=des:qos mandatory local sendrecv",
                "a=des:qos mandatory remote sendrecv",
                "a=conf:qos remote sendrecv",
            ]
        );
        // The caller reserves and owes the news.
        assert!(!caller.owes_confirmation());
        caller.reserved(Reach::BOTH);
        assert!(caller.owes_confirmation() && !caller.are_met());
        assert_eq!(
            tell(&mut caller, &mut callee)[..2],
            ["a=curr:qos local sendrecv", "a=curr:qos remote none"]
        );
        assert!(!caller.owes_confirmation(), "said once");
        assert!(!callee.are_met(), "its own side is not ready");
        callee.reserved(Reach::BOTH);
        assert!(callee.are_met());
        assert_eq!(
            tell(&mut callee, &mut caller)[..],
            [
                "a=curr:qos local sendrecv",
                "a=curr:qos remote sendrecv",
                "a=des:qos mandatory local sendrecv",
                "a=des:qos mandatory remote sendrecv",
            ],
            "nothing is left to be confirmed"
        );
        assert!(caller.are_met());
    }

    #[test]
    fn directions_are_turned_and_the_peer_does_not_know_better_about_us() {
        let mut table = Preconditions::none();
        hear(
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
            table.speak(),
            [
                "a=curr:qos local none",
                "a=curr:qos remote recv",
                "a=des:qos optional local sendrecv",
                "a=des:qos mandatory remote recv",
            ]
        );
        assert!(table.are_met(), "what is optional holds nobody up");
    }

    #[test]
    fn end_to_end_status_is_what_both_have() {
        let mut table = Preconditions::none();
        let offer = ["a=curr:qos e2e send", "a=des:qos mandatory e2e sendrecv"];
        hear(&mut table, &offer).unwrap();
        assert!(!table.are_met());
        table.reserved(Reach {
            send: true,
            recv: false,
        });
        assert!(table.are_met(), "the peer sends, and so do we: {table:?}");
    }

    #[test]
    fn strengths_are_raised_and_never_lowered() {
        let mut table = Preconditions::wanted(Strength::Optional, Strength::Mandatory);
        let answer = [
            "a=curr:qos local none",
            "a=curr:qos remote none",
            "a=des:qos optional local sendrecv",
            "a=des:qos mandatory remote sendrecv",
        ];
        hear(&mut table, &answer).unwrap();
        assert_eq!(
            table.speak()[2..],
            [
                "a=des:qos mandatory local sendrecv",
                "a=des:qos mandatory remote sendrecv",
            ]
        );
    }

    #[test]
    fn what_cannot_be_met_is_named() {
        let mut table = Preconditions::none();
        let offer = [
            "a=curr:foo e2e none",
            "a=des:foo mandatory e2e sendrecv",
            "a=curr:qos local none",
            "a=des:qos optional local sendrecv",
        ];
        let unmet = hear(&mut table, &offer).unwrap_err();
        assert_eq!(unmet.line, "a=des:foo unknown e2e sendrecv");
        assert!(table.is_used(), "the rest was taken");
        let optional = ["a=curr:foo e2e none", "a=des:foo optional e2e sendrecv"];
        hear(&mut Preconditions::none(), &optional).unwrap();
        let mut caller = Preconditions::wanted(Strength::Mandatory, Strength::Mandatory);
        let refusal = ["a=des:qos failure local sendrecv"];
        let unmet = hear(&mut caller, &refusal).unwrap_err();
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
    fn without_preconditions_nothing_is_said_and_nothing_waits() {
        let mut table = Preconditions::none();
        assert!(!table.is_used() && table.are_met() && !table.are_required());
        assert_eq!(table.speak(), [""; 0]);
        hear(&mut table, &[]).unwrap();
        assert!(!table.is_used());
    }
}
