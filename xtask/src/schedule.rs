//! When each test runs, and beside which others.
//!
//! Tests with other programs mostly wait. They run more threads than there are cores ([`THREADS`]), and those that
//! wait most of all have a process of their own beside them ([`WAITING`]). Tests that compute and wait for nothing
//! ([`COMPUTED`]) run at idle priority beside all these. Tests that the load of others would decide follow after all
//! programs, when nothing is built any more: first those of `xtask/quiet.txt`, which hardly use the processors
//! themselves, several at a time, then those of `xtask/apart.txt`, one at a time.

use crate::process::root;

/// The tests that need idle processors and leave them idle.
const QUIET: &str = "xtask/quiet.txt";
/// Their threads, beside those of [`WAITING`]. Each keeps a hundredth to a tenth of two cores busy (vmstat), and
/// the programs that they start take a second of a core.
const QUIET_THREADS: usize = 2;
/// The tests that run one at a time.
const APART: &str = "xtask/apart.txt";
/// Test programs whose tests mostly wait, with their threads for each core.
const THREADS: [(&str, usize); 2] = [(FIRST, 2), ("lab suite", 2)];
/// The program that takes longest, which starts first.
const FIRST: &str = "hornwork suite";
/// Tests that wait most of all (for their turn, for pauses of scenarios, for timers), by test program and the beginning
/// of their names. They have a process of their own beside the others of their program, with a thread for each two
/// cores. Among the others they would occupy threads, and some that take more than a minute would begin last, by the
/// order of the names. On two cores they take about as long as the others together: 613 s and 619 s, computed from the
/// times of a run. `peer_phones` comes first, beside tests that hardly compute.
const WAITING: [(&str, &str); 6] = [
    (FIRST, "peer_phones::"),
    (FIRST, "peer_scenarios::"),
    (FIRST, "peer_sipp::shared_scenarios"),
    (FIRST, "softphone_ike::"),
    (
        FIRST,
        "studies::real_run_above_the_interval_of_the_plan_fails",
    ),
    (FIRST, "subjects::silent_connections"),
];
/// Tests that need no clock and no socket (simulations and decoders), by test program and the beginning of their names.
const COMPUTED: [(&str, &str); 17] = [
    ("analyse suite", ""),
    ("border suite", ""),
    ("codec suite", ""),
    ("engine timers", ""),
    (
        FIRST,
        "studies::pages_of_simulated_studies_lead_to_their_records",
    ),
    (
        FIRST,
        "studies::study_runs_in_virtual_time_without_any_right",
    ),
    ("lab suite", "broken::broken_sut_fails_part"),
    ("lab suite", "overload::"),
    ("lab suite", "run::"),
    ("media allocation", ""),
    ("media suite", ""),
    ("ng suite", ""),
    ("protect suite", ""),
    ("rules suite", ""),
    ("sim suite", ""),
    ("sip suite", ""),
    ("wire suite", ""),
];

/// The part of a run in which a test runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// At idle priority.
    Idle,
    /// Beside the others of its program.
    Beside,
    /// After all programs, with a few others.
    Quiet,
    /// After these, one at a time.
    Apart,
}

/// The tests that follow after the others, with the reasons.
#[derive(Debug, Clone, Default)]
pub struct Schedule {
    quiet: Vec<(String, String)>,
    apart: Vec<(String, String)>,
}

impl Schedule {
    /// Reads the lists of this repository.
    ///
    /// # Errors
    /// A list is missing, or a line has no reason.
    pub fn read() -> Result<Self, String> {
        Ok(Self {
            quiet: reasons(QUIET)?,
            apart: reasons(APART)?,
        })
    }

    /// The part in which a test of this program runs.
    pub fn part(&self, program: &str, test: &str) -> Part {
        let name = format!("{program} {test}");
        let is_in = |list: &[(String, String)]| list.iter().any(|(listed, _)| *listed == name);
        if is_in(&self.apart) {
            Part::Apart
        } else if is_in(&self.quiet) {
            Part::Quiet
        } else if begins_with(&COMPUTED, program, test) {
            Part::Idle
        } else {
            Part::Beside
        }
    }

    /// Those of a program's tests that run in this part.
    pub fn tests<'a>(&self, program: &str, names: &'a [String], part: Part) -> Vec<&'a String> {
        let tests = names.iter();
        tests
            .filter(|name| self.part(program, name) == part)
            .collect()
    }

    /// Whether a list of tests that follow after the others names this program.
    pub fn has_later_tests(&self, program: &str) -> bool {
        let prefix = format!("{program} ");
        let mut listed = self.quiet.iter().chain(&self.apart);
        listed.any(|(test, _)| test.starts_with(&prefix))
    }

    /// The runs of a program in this part, which go on at the same time: each is a list of arguments. There is none if
    /// the program has no test for it.
    pub fn runs(&self, program: &str, names: &[String], part: Part) -> Vec<Vec<String>> {
        let tests = self.tests(program, names, part);
        if part == Part::Apart && !tests.is_empty() {
            return vec![run_of(Some(1), &tests)];
        }
        let (waiting, others): (Vec<&String>, Vec<&String>) = tests
            .into_iter()
            .partition(|test| begins_with(&WAITING, program, test));
        let threads = match part {
            Part::Quiet => Some(QUIET_THREADS),
            Part::Idle | Part::Beside | Part::Apart => threads(program),
        };
        let mut runs = Vec::new();
        // Without a name, a program runs all its tests.
        if !others.is_empty() || (names.is_empty() && part == Part::Beside) {
            runs.push(run_of(threads, &others));
        }
        if !waiting.is_empty() {
            runs.push(run_of(Some((cores() / 2).max(1)), &waiting));
        }
        runs
    }
}

/// Whether a program is the one that starts first.
pub fn is_first(program: &str) -> bool {
    program == FIRST
}

/// Refuses an entry of the lists of this file that no test of the program begins with: its test has another name now.
///
/// # Errors
/// Such an entry.
pub fn check(program: &str, names: &[String]) -> Result<(), String> {
    let entries = COMPUTED.iter().chain(&WAITING);
    let mut of_program = entries.filter(|(name, _)| *name == program);
    let unknown = of_program.find(|(_, begin)| !names.iter().any(|test| test.starts_with(begin)));
    match unknown {
        Some((_, begin)) => Err(format!("{program} has no test that begins with {begin}")),
        None => Ok(()),
    }
}

/// Threads of a program whose tests mostly wait.
fn threads(program: &str) -> Option<usize> {
    let (_, factor) = THREADS.iter().find(|(name, _)| *name == program)?;
    Some(factor * cores())
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn begins_with(list: &[(&str, &str)], program: &str, test: &str) -> bool {
    list.iter()
        .any(|(name, begin)| *name == program && test.starts_with(begin))
}

/// The arguments of a run of exactly these tests.
pub fn run_of(threads: Option<usize>, tests: &[&String]) -> Vec<String> {
    let mut arguments: Vec<String> = threads
        .map(|threads| format!("--test-threads={threads}"))
        .into_iter()
        .collect();
    arguments.push("--exact".into());
    arguments.extend(tests.iter().map(|&test| test.clone()));
    arguments
}

/// The tests that a list of this repository names, with their reasons.
///
/// # Errors
/// The list is missing, or a line has no reason.
pub fn reasons(list: &str) -> Result<Vec<(String, String)>, String> {
    let path = root().join(list);
    let text =
        std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    listed(&text).map_err(|line| format!("{list}: no reason in the line: {line}"))
}

/// Lines `CRATE TARGET TEST: reason`; a line that begins with `#` is a remark.
fn listed(text: &str) -> Result<Vec<(String, String)>, String> {
    let lines = text.lines().map(str::trim);
    lines
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| match line.split_once(": ") {
            Some((test, why)) if !why.trim().is_empty() => {
                Ok((test.trim().to_owned(), why.trim().to_owned()))
            }
            _ => Err(line.to_owned()),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listed_test_needs_a_reason() {
        let good = listed("# remark\n\nlab suite run::load: the host stalls\n").expect("a list");
        assert_eq!(
            good,
            [(
                "lab suite run::load".to_owned(),
                "the host stalls".to_owned()
            )]
        );
        assert!(listed("lab suite run::load\n").is_err());
        assert!(listed("lab suite run::load: \n").is_err());
    }

    fn entries(tests: &[&str]) -> Vec<(String, String)> {
        tests
            .iter()
            .map(|test| ((*test).to_owned(), "why".to_owned()))
            .collect()
    }

    #[test]
    fn named_tests_run_after_the_others() {
        let schedule = Schedule {
            quiet: entries(&["hornwork suite a::c", "hornwork suite peer_phones::b"]),
            apart: entries(&["lab suite a::b"]),
        };
        let names = ["a::a", "a::b", "a::c", "peer_phones::a", "peer_phones::b"].map(str::to_owned);
        let runs = |program: &str, part| schedule.runs(program, &names, part);
        let beside = runs("lab suite", Part::Beside);
        assert_eq!(beside.len(), 1);
        assert_eq!(
            beside[0][1..],
            [
                "--exact",
                "a::a",
                "a::c",
                "peer_phones::a",
                "peer_phones::b"
            ]
        );
        assert!(beside[0][0].starts_with("--test-threads="), "{beside:?}");
        assert!(runs("lab suite", Part::Quiet).is_empty());
        let apart = runs("lab suite", Part::Apart);
        assert_eq!(apart, [["--test-threads=1", "--exact", "a::b"]]);
        // A program that no list names has the threads of its own choice, and nothing follows.
        let other = schedule.runs("net suite", &names[..1], Part::Beside);
        assert_eq!(other, [["--exact", "a::a"]]);
        assert!(schedule.has_later_tests("lab suite") && !schedule.has_later_tests("net suite"));
        // One without names runs all its tests, once.
        let unnamed = |part| schedule.runs("net suite", &[], part);
        assert_eq!(unnamed(Part::Beside), [["--exact"]]);
        for part in [Part::Idle, Part::Quiet, Part::Apart] {
            assert!(unnamed(part).is_empty(), "{part:?}");
        }
    }

    #[test]
    fn waiting_tests_have_a_process_beside_the_others() {
        let schedule = Schedule {
            quiet: entries(&["hornwork suite a::c", "hornwork suite peer_phones::b"]),
            apart: entries(&["hornwork suite peer_phones::c"]),
        };
        let names = [
            "a::b",
            "a::c",
            "peer_phones::a",
            "peer_phones::b",
            "peer_scenarios::a",
        ];
        let names = names.map(str::to_owned);
        let runs = |part| schedule.runs("hornwork suite", &names, part);
        let run = |threads: usize, tests: &[&str]| {
            let threads = format!("--test-threads={threads}");
            let tests = tests.iter().map(|&test| test.to_owned());
            let fixed = [threads, "--exact".to_owned()];
            fixed.into_iter().chain(tests).collect::<Vec<String>>()
        };
        let waiting = (cores() / 2).max(1);
        let beside = [
            run(2 * cores(), &["a::b"]),
            run(waiting, &["peer_phones::a", "peer_scenarios::a"]),
        ];
        assert_eq!(runs(Part::Beside), beside);
        let quiet = [
            run(QUIET_THREADS, &["a::c"]),
            run(waiting, &["peer_phones::b"]),
        ];
        assert_eq!(runs(Part::Quiet), quiet);
        assert!(runs(Part::Apart).is_empty());
    }

    #[test]
    fn computing_tests_run_at_idle_priority_alone() {
        let schedule = Schedule::default();
        let names = ["broken::a", "overload::a"].map(str::to_owned);
        let tests = |part| schedule.tests("lab suite", &names, part);
        assert_eq!(tests(Part::Idle), [&names[1]]);
        assert_eq!(tests(Part::Beside), [&names[0]]);
        let sip = ["a".to_owned()];
        assert!(schedule.runs("sip suite", &sip, Part::Beside).is_empty());
    }

    #[test]
    fn entries_without_a_test_are_named() {
        let names = ["broken::broken_sut_fails_part_two", "overload::a", "run::a"];
        let names = names.map(str::to_owned);
        check("lab suite", &names).expect("a test of each entry");
        let why = check("lab suite", &names[..2]).expect_err("an entry without a test");
        assert_eq!(why, "lab suite has no test that begins with run::");
        assert!(check("hornwork suite", &names).is_err());
        check("net suite", &[]).expect("no entry");
    }

    #[test]
    fn lists_name_tests_that_exist_once() {
        let schedule = Schedule::read().expect("the lists of this repository");
        // A name that no test has would leave its test beside the others in silence.
        let tests = crate::texts::tests(&crate::texts::tracked().expect("tracked files"));
        let listed = schedule.quiet.iter().chain(&schedule.apart);
        let mut names: Vec<&String> = listed.map(|(name, _)| name).collect();
        for name in &names {
            let test = name.rsplit([':', ' ']).next().expect("a test");
            assert!(tests.contains(test), "{name}");
        }
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all, "a test is listed twice");
    }
}
