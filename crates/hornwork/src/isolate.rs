//! `hornwork isolate`: guaranteed shares of a network interface for voice and signalling against other traffic.
//!
//! Packets are classified by their differentiated services code point (RFC 2474), which the border sets, and scheduled
//! by the kernel's hierarchical token bucket: each class has a guaranteed share of the rate, and unused capacity is
//! lent to the others, voice first. This follows a study of voice under bulk traffic that used a hypervisor's shares.

use crate::configuration::load;
use clap::{Args, ValueEnum};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output};

/// Major number of our queueing discipline, hexadecimal: `HW`. Disciplines with another number are never removed.
const HANDLE: &str = "4857";
/// Length of the voice queue, seconds of its guaranteed rate: later packets are of no use to a listener.
const VOICE_QUEUE_S: f64 = 0.02;
/// Octets of a voice packet on the wire: G.711 of 20 ms, RTP, UDP, IPv4, Ethernet.
const VOICE_PACKET_OCTETS: f64 = 214.0;
/// Queue lengths of signalling and of other traffic, packets.
const SIGNALLING_QUEUE_PACKETS: u64 = 500;
const BULK_QUEUE_PACKETS: u64 = 1_000;
/// Share of the device's speed that is used without --rate: with all of it the queue would build up in the device,
/// where shares have no effect.
const SPEED_SHARE: f64 = 0.95;
/// Lowest rate that can be divided, bits per second.
const MIN_RATE_BPS: u64 = 64_000;

/// Options of `hornwork isolate`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example: hornwork isolate lo --rate 950mbit --voice 50 --signalling 5 --others 45"
)]
pub struct Isolate {
    /// Network interface through which voice leaves.
    #[arg(value_name = "INTERFACE")]
    interface: String,
    /// Rate to divide, a little below the link's capacity, such as 950mbit (kbit, mbit, gbit). Default: 95 % of the
    /// speed that the device reports.
    #[arg(long, value_name = "RATE", value_parser = rate)]
    rate: Option<u64>,
    /// Shares of voice.
    #[arg(long, value_name = "SHARES", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    voice: u32,
    /// Shares of signalling.
    #[arg(long, value_name = "SHARES", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    signalling: u32,
    /// Shares of other traffic.
    #[arg(long, value_name = "SHARES", default_value_t = 45, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    others: u32,
    /// Configuration of the border, for the code points of voice and signalling. Default: 46 and 24, the defaults of
    /// the border.
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Priorities of IEEE 802.1Q for voice and signalling, such as 5,3, if the interface is a VLAN.
    #[arg(long, value_name = "VOICE,SIGNALLING", value_parser = priorities)]
    vlan_priorities: Option<(u8, u8)>,
    /// Action.
    #[arg(long, value_enum, default_value_t = IsolateAction::Show)]
    r#do: IsolateAction,
}

/// Action on the commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum IsolateAction {
    /// Print the commands, and change nothing.
    Show,
    /// Run the commands. An earlier setup by hornwork is replaced.
    Apply,
    /// Remove the applied setup.
    Remove,
}

/// A class of traffic.
struct Class {
    /// Minor number.
    minor: u8,
    /// Guaranteed rate, bits per second.
    rate: u64,
    /// Priority for borrowing unused rate; lower borrows first.
    order: u8,
    /// Length of its queue, packets.
    queue: u64,
}

/// The setup to apply.
#[derive(Debug, Clone, PartialEq, Eq)]
struct DivisionPlan {
    interface: String,
    /// Bits per second.
    rate: u64,
    /// Shares of voice, signalling and other traffic.
    shares: [u32; 3],
    /// Code points of voice and signalling.
    points: [u8; 2],
    vlan: Option<(u8, u8)>,
}

impl DivisionPlan {
    fn classes(&self) -> [Class; 3] {
        let [voice, signalling, others] = self.shares.map(u64::from);
        let all = voice + signalling + others;
        // In 128 bits: 400 Gbit/s times a million shares.
        let part = |shares: u64| {
            let rate = u128::from(self.rate) * u128::from(shares) / u128::from(all);
            u64::try_from(rate).unwrap_or(u64::MAX).max(8)
        };
        let room = part(voice) as f64 * VOICE_QUEUE_S / 8.0 / VOICE_PACKET_OCTETS;
        [
            Class {
                minor: 10,
                rate: part(voice),
                order: 0,
                queue: (room as u64).max(16),
            },
            Class {
                minor: 20,
                rate: part(signalling),
                order: 1,
                queue: SIGNALLING_QUEUE_PACKETS,
            },
            Class {
                minor: 30,
                rate: part(others),
                order: 2,
                queue: BULK_QUEUE_PACKETS,
            },
        ]
    }

    /// The commands in order, each as program and arguments.
    fn commands(&self) -> Vec<Vec<String>> {
        let device = &self.interface;
        let words = |text: String| text.split_whitespace().map(str::to_owned).collect();
        let mut commands = vec![
            words(format!(
                "tc qdisc replace dev {device} root handle {HANDLE}: htb default 30"
            )),
            words(format!(
                "tc class add dev {device} parent {HANDLE}: classid {HANDLE}:1 htb rate {rate}bit ceil {rate}bit quantum 1514",
                rate = self.rate
            )),
        ];
        for class in self.classes() {
            commands.push(words(format!(
                "tc class add dev {device} parent {HANDLE}:1 classid {HANDLE}:{} htb rate {}bit ceil {}bit prio {} quantum 1514",
                class.minor, class.rate, self.rate, class.order
            )));
            commands.push(words(format!(
                "tc qdisc add dev {device} parent {HANDLE}:{} pfifo limit {}",
                class.minor, class.queue
            )));
        }
        let marks = self.vlan.map(|(voice, signalling)| [voice, signalling]);
        for (at, point) in self.points.iter().enumerate() {
            // The code point is in the upper six bits of the octet.
            let octet = point << 2;
            let minor = [10, 20].get(at).copied().unwrap_or(30);
            let mark = marks.and_then(|marks| marks.get(at).copied());
            let mark = mark.map_or_else(String::new, |mark| {
                format!(" action skbedit priority {mark}")
            });
            for (order, protocol, field) in [(1, "ip", "ip dsfield"), (2, "ipv6", "ip6 priority")] {
                commands.push(words(format!(
                    "tc filter add dev {device} parent {HANDLE}: protocol {protocol} prio {} u32 match {field} {octet:#04x} 0xfc flowid {HANDLE}:{minor}{mark}",
                    at * 2 + order
                )));
            }
        }
        if let Some((voice, signalling)) = self.vlan {
            commands.push(words(format!(
                "ip link set dev {device} type vlan egress-qos-map {voice}:{voice} {signalling}:{signalling}"
            )));
        }
        commands
    }
}

/// Exit code and message of a failure.
type IsolateError = (u8, String);

/// `hornwork isolate`.
pub fn run(options: &Isolate) -> ExitCode {
    match attempt(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err((code, why)) => {
            if !why.is_empty() {
                eprintln!("hornwork: {why}");
            }
            ExitCode::from(code)
        }
    }
}

fn attempt(options: &Isolate) -> Result<(), IsolateError> {
    let device = Device::find(&options.interface)?;
    if options.r#do == IsolateAction::Remove {
        return remove(&options.interface);
    }
    let plan = plan(options, &device)?;
    let commands = plan.commands();
    if options.r#do == IsolateAction::Show {
        for command in &commands {
            println!("{}", command.join(" "));
        }
        let [voice, signalling, others] = plan.classes().map(|class| class.rate);
        println!(
            "# of {} bit/s voice (code point {}) has {voice} guaranteed, signalling ({}) {signalling}, other traffic {others}; nothing was changed: run with --do apply",
            plan.rate, plan.points[0], plan.points[1]
        );
        return Ok(());
    }
    apply(&plan.interface, &commands)
}

/// The setup that the options request.
fn plan(options: &Isolate, device: &Device) -> Result<DivisionPlan, IsolateError> {
    let points = match &options.config {
        None => [46, 24],
        Some(file) => {
            let config = load(file).map_err(|_| (2, String::new()))?;
            [config.media.dscp, config.sip.dscp]
        }
    };
    if points[0] == points[1] {
        return Err((
            2,
            format!(
                "voice and signalling have the same code point, {}, and cannot be distinguished: set different values for `[media] dscp` and `[sip] dscp`",
                points[0]
            ),
        ));
    }
    if let Some(class) = ["voice", "signalling"]
        .into_iter()
        .zip(points)
        .find_map(|(class, point)| (point == 0).then_some(class))
    {
        return Err((
            2,
            format!("{class} has code point 0, as all other traffic: set another one"),
        ));
    }
    if options.vlan_priorities.is_some() && !device.is_vlan {
        return Err((
            2,
            format!(
                "{} is not a VLAN interface, so its frames have no priority: remove --vlan-priorities",
                options.interface
            ),
        ));
    }
    let rate = match options.rate {
        Some(rate) => rate,
        None => device.rate().ok_or_else(|| {
            let why = format!(
                "{} does not report its speed: set --rate, such as --rate 950mbit",
                options.interface
            );
            (2, why)
        })?,
    };
    Ok(DivisionPlan {
        interface: options.interface.clone(),
        rate,
        shares: [options.voice, options.signalling, options.others],
        points,
        vlan: options.vlan_priorities,
    })
}

/// A network interface of the current network namespace.
struct Device {
    name: String,
    index: u32,
    is_vlan: bool,
}

impl Device {
    fn find(name: &str) -> Result<Device, IsolateError> {
        let absent = || {
            let why = format!("no network interface \"{name}\"; `ip -br link` lists them");
            (3, why)
        };
        // A name with a leading dash would be parsed as an option.
        if name.is_empty() || name.starts_with('-') || name.contains('/') {
            return Err(absent());
        }
        let words = ["-details", "-oneline", "link", "show", "dev", name];
        let shown = start("ip", &words.map(str::to_owned))?;
        let text = String::from_utf8_lossy(&shown.stdout).into_owned();
        let index = text
            .split_once(':')
            .and_then(|(index, _)| index.parse().ok());
        match (shown.status.success(), index) {
            (true, Some(index)) => Ok(Device {
                name: name.to_owned(),
                index,
                is_vlan: text.contains(" vlan protocol "),
            }),
            _ => Err(absent()),
        }
    }

    /// 95 % of the speed that the device reports, bits per second.
    fn rate(&self) -> Option<u64> {
        let folder = Path::new("/sys/class/net").join(&self.name);
        let read = |file: &str| std::fs::read_to_string(folder.join(file)).ok();
        // /sys may belong to another network namespace, in which the same name is another device.
        if read("ifindex")?.trim().parse() != Ok(self.index) {
            return None;
        }
        // -1 if unknown.
        let megabits: u64 = read("speed")?.trim().parse().ok().filter(|&it| it > 0)?;
        Some((megabits as f64 * 1e6 * SPEED_SHARE) as u64)
    }
}

/// Queueing discipline at the root of an interface.
enum Root {
    /// The kernel's default.
    KernelDefault,
    Ours,
    /// Configured by another program or administrator.
    Foreign(String),
}

fn root_of(interface: &str) -> Result<Root, IsolateError> {
    let shown = tc(&["qdisc", "show", "dev", interface, "root"])?;
    let text = String::from_utf8_lossy(&shown.stdout).into_owned();
    if !shown.status.success() {
        return Err((3, failure(&shown)));
    }
    Ok(root_in(&text))
}

/// Parses `tc qdisc show`: handle 0 denotes the kernel's default.
fn root_in(text: &str) -> Root {
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let (Some("qdisc"), Some(kind), Some(handle)) = (words.next(), words.next(), words.next())
        else {
            continue;
        };
        if !words.any(|word| word == "root") || handle == "0:" {
            continue;
        }
        return match (kind, handle.trim_end_matches(':')) {
            ("htb", HANDLE) => Root::Ours,
            _ => Root::Foreign(line.trim().to_owned()),
        };
    }
    Root::KernelDefault
}

fn apply(interface: &str, commands: &[Vec<String>]) -> Result<(), IsolateError> {
    match root_of(interface)? {
        Root::KernelDefault => {}
        // Existing classes cannot be added again.
        Root::Ours => remove(interface)?,
        Root::Foreign(line) => {
            return Err((
                3,
                format!(
                    "{interface} already has another queueing discipline ({line}); remove it first: tc qdisc del dev {interface} root"
                ),
            ));
        }
    }
    for (done, command) in commands.iter().enumerate() {
        let Some((program, words)) = command.split_first() else {
            continue;
        };
        let output = start(program, words)?;
        if output.status.success() {
            continue;
        }
        let why = failure(&output);
        // A partial setup would be worse than none.
        let undone = match done {
            0 => String::new(),
            _ => match remove(interface) {
                Ok(()) => "; the partial setup was removed".to_owned(),
                Err((_, more)) => format!("; removing the partial setup failed: {more}"),
            },
        };
        return Err((3, format!("`{}`: {why}{undone}", command.join(" "))));
    }
    Ok(())
}

fn remove(interface: &str) -> Result<(), IsolateError> {
    match root_of(interface)? {
        Root::Ours => {}
        Root::KernelDefault => return Ok(()),
        Root::Foreign(line) => {
            return Err((3, format!("{interface} has no setup by hornwork: {line}")));
        }
    }
    let output = tc(&["qdisc", "del", "dev", interface, "root"])?;
    match output.status.success() {
        true => Ok(()),
        false => Err((3, failure(&output))),
    }
}

fn tc(words: &[&str]) -> Result<Output, IsolateError> {
    let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    start("tc", &words)
}

fn start(program: &str, words: &[String]) -> Result<Output, IsolateError> {
    Command::new(program).args(words).output().map_err(|error| {
        let why = match error.kind() {
            std::io::ErrorKind::NotFound => {
                format!("`{program}` is not installed (Debian: apt install iproute2)")
            }
            _ => format!("{program}: {error}"),
        };
        (3, why)
    })
}

/// The error output of a failed program, with a hint.
fn failure(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    let text = text.trim();
    match text.contains("not permitted") {
        true => format!("{text}: run it as root, or with CAP_NET_ADMIN"),
        false if text.is_empty() => output.status.to_string(),
        false => text.to_owned(),
    }
}

/// Parses a rate in the notation of `tc`: a number and bit, kbit, mbit or gbit.
fn rate(text: &str) -> Result<u64, String> {
    let wrong = || format!("\"{text}\" is not a rate: write for example 950mbit");
    let lower = text.to_ascii_lowercase();
    let number = lower.strip_suffix("bit").ok_or_else(wrong)?;
    let (number, unit) = match number.as_bytes().last() {
        Some(b'k') => (number.strip_suffix('k'), 1e3),
        Some(b'm') => (number.strip_suffix('m'), 1e6),
        Some(b'g') => (number.strip_suffix('g'), 1e9),
        _ => (Some(number), 1.0),
    };
    let plain = |text: &&str| text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let number = number.filter(plain).ok_or_else(wrong)?;
    let rate = number.parse::<f64>().map_err(|_| wrong())? * unit;
    match rate.is_finite() && rate >= MIN_RATE_BPS as f64 && rate <= 1e13 {
        true => Ok(rate as u64),
        false => Err(format!("{text}: must be from 64kbit to 10000gbit")),
    }
}

fn priorities(text: &str) -> Result<(u8, u8), String> {
    let one = |text: &str| text.parse::<u8>().ok().filter(|priority| *priority <= 7);
    let both = text
        .split_once(',')
        .map(|(voice, rest)| (one(voice), one(rest)));
    match both {
        Some((Some(voice), Some(signalling))) => Ok((voice, signalling)),
        _ => Err(format!(
            "\"{text}\" is not two priorities from 0 to 7: write for example 5,3"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> DivisionPlan {
        DivisionPlan {
            interface: "eth0".into(),
            rate: 1_000_000,
            shares: [50, 5, 45],
            points: [46, 24],
            vlan: None,
        }
    }

    #[test]
    fn rate_is_divided_completely_by_shares() {
        let rates = example().classes().map(|class| class.rate);
        assert_eq!(rates, [500_000, 50_000, 450_000]);
        let odd = DivisionPlan {
            rate: 10_000_000_000_000,
            shares: [1_000_000, 999_999, 3],
            ..example()
        };
        let given: u64 = odd.classes().iter().map(|class| class.rate).sum();
        assert!(given <= odd.rate && odd.rate - given < 3, "{given}");
    }

    #[test]
    fn voice_queue_length_is_limited_in_time() {
        let plan = DivisionPlan {
            rate: 100_000_000,
            ..example()
        };
        let [voice, ..] = plan.classes();
        // 20 ms of 50 Mbit/s are 125,000 octets.
        assert_eq!(voice.queue, 584);
        assert_eq!(example().classes()[0].queue, 16);
    }

    #[test]
    fn code_points_of_both_ip_versions_select_classes() {
        let commands: Vec<String> = example().commands().iter().map(|c| c.join(" ")).collect();
        let filters: Vec<&String> = commands.iter().filter(|c| c.contains("filter")).collect();
        assert_eq!(
            filters,
            [
                "tc filter add dev eth0 parent 4857: protocol ip prio 1 u32 match ip dsfield 0xb8 0xfc flowid 4857:10",
                "tc filter add dev eth0 parent 4857: protocol ipv6 prio 2 u32 match ip6 priority 0xb8 0xfc flowid 4857:10",
                "tc filter add dev eth0 parent 4857: protocol ip prio 3 u32 match ip dsfield 0x60 0xfc flowid 4857:20",
                "tc filter add dev eth0 parent 4857: protocol ipv6 prio 4 u32 match ip6 priority 0x60 0xfc flowid 4857:20",
            ]
        );
    }

    #[test]
    fn vlan_priorities_are_set_and_mapped() {
        let plan = DivisionPlan {
            vlan: Some((5, 3)),
            ..example()
        };
        let commands: Vec<String> = plan.commands().iter().map(|c| c.join(" ")).collect();
        let marked = |word: &str| commands.iter().filter(|c| c.contains(word)).count();
        assert_eq!(marked("flowid 4857:10 action skbedit priority 5"), 2);
        assert_eq!(marked("flowid 4857:20 action skbedit priority 3"), 2);
        assert_eq!(
            commands.last().unwrap(),
            "ip link set dev eth0 type vlan egress-qos-map 5:5 3:3"
        );
    }

    #[test]
    fn rates_are_parsed_in_the_notation_of_tc() {
        for (text, bits) in [
            ("950mbit", 950_000_000),
            ("1gbit", 1_000_000_000),
            ("2.5Gbit", 2_500_000_000),
            ("64kbit", 64_000),
            ("100000bit", 100_000),
        ] {
            assert_eq!(rate(text), Ok(bits), "{text}");
        }
        for text in [
            "",
            "bit",
            "950",
            "950mb",
            "-1mbit",
            "1e9bit",
            "nanbit",
            "infbit",
            "1kbit",
            "1.2.3mbit",
            "99999gbit",
        ] {
            assert!(rate(text).is_err(), "{text}");
        }
    }

    #[test]
    fn vlan_priorities_are_two_numbers_up_to_seven() {
        assert_eq!(priorities("5,3"), Ok((5, 3)));
        for text in ["5", "8,3", "5,", "a,b", "5,3,1", "-1,2"] {
            assert!(priorities(text).is_err(), "{text}");
        }
    }

    #[test]
    fn foreign_setup_is_distinguished_from_kernel_default() {
        assert!(matches!(
            root_in("qdisc noqueue 0: root refcnt 2 \n"),
            Root::KernelDefault
        ));
        assert!(matches!(root_in(""), Root::KernelDefault));
        assert!(matches!(
            root_in("qdisc htb 4857: root refcnt 2 r2q 10 default 0x30\n"),
            Root::Ours
        ));
        let other =
            "qdisc htb 1: root refcnt 2 r2q 10 default 0x30\nqdisc pfifo 4857: parent 1:10\n";
        assert!(matches!(root_in(other), Root::Foreign(_)));
    }
}
