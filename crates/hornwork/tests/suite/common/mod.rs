//! Common parts of the tests with other programs: checks for installed programs, a border on separate ports, and child
//! processes that end with their test.
#![allow(dead_code, reason = "each test binary uses a part of it")]

pub mod callers;
pub mod certificates;
pub mod network_case;
pub mod phones;
pub mod pings;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::net::{TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// The root of the workspace.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The third-party test data; `None`, with a printed reason, if it is missing.
pub fn testdata() -> Option<PathBuf> {
    let folder = std::env::var_os("HORNWORK_TESTDATA")
        .map_or_else(|| root().join("../shared/testdata"), PathBuf::from);
    if folder.is_dir() {
        return Some(folder);
    }
    eprintln!("skipped: testdata absent");
    None
}

/// Whether all these programs are installed; prints the missing one.
pub fn installed(programs: &[&str]) -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    let missing: Vec<&&str> = programs
        .iter()
        .filter(|program| {
            !path
                .split(':')
                .any(|folder| Path::new(folder).join(program).is_file())
        })
        .collect();
    if !missing.is_empty() {
        eprintln!("skipped: not installed: {missing:?}");
    }
    missing.is_empty()
}

/// A folder for one test, emptied first.
pub fn scratch(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("scratch folder");
    folder
}

/// Waits until a file, to which a program writes its messages, contains `word`.
pub fn until_written(file: &Path, word: &str) {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let text = std::fs::read(file).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        if text.contains(word) {
            return;
        }
        assert!(Instant::now() < end, "no {word}: {text}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The files below two folders that differ in a byte or are in one of them only, by their paths in the folder.
pub fn different_files(one: &Path, other: &Path) -> Vec<PathBuf> {
    let (files, others) = (files_below(one), files_below(other));
    assert!(!files.is_empty(), "{}", one.display());
    let names: BTreeSet<&PathBuf> = files.keys().chain(others.keys()).collect();
    let differ = names
        .into_iter()
        .filter(|name| files.get(*name) != others.get(*name));
    differ.cloned().collect()
}

/// The files below a folder, by their paths in it.
fn files_below(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(&next).expect("a folder") {
            let path = entry.expect("an entry").path();
            match path.is_dir() {
                true => folders.push(path),
                false => {
                    let name = path.strip_prefix(folder).expect("below it").to_owned();
                    files.insert(name, std::fs::read(&path).expect("a file"));
                }
            }
        }
    }
    files
}

/// A port of 127.0.0.1 that is free for UDP and TCP and not used by another test, of this process or of another, below
/// the ephemeral ports. Further programs may use ports some thousands above it, so it is below 20,000.
pub fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    const FIRST: u32 = 10_000;
    const ROOM: u32 = 8_000;
    let start = std::process::id().wrapping_mul(61);
    (0..ROOM)
        .map(|attempt| {
            let number = NEXT.fetch_add(1, Ordering::Relaxed) * 4 + start;
            (attempt, (FIRST + number % ROOM / 4 * 4) as u16)
        })
        .find(|&(attempt, port)| {
            // Where every port was claimed once, the oldest ones are used again.
            (claim(port) || attempt >= ROOM / 4)
                && UdpSocket::bind(("127.0.0.1", port)).is_ok()
                && TcpListener::bind(("127.0.0.1", port)).is_ok()
        })
        .map(|(_, port)| port)
        .expect("a free port")
}

/// Claims a port until the end of this process, by a name of an abstract Unix socket. Test programs run beside each
/// other, and a test may leave its port closed.
fn claim(port: u16) -> bool {
    abstract_name(&format!("hornwork-test-port/{port}"))
        .map(std::mem::forget)
        .is_some()
}

/// Takes an abstract name of a Unix socket, which no other process has meanwhile.
fn abstract_name(name: &str) -> Option<UnixListener> {
    std::os::unix::net::SocketAddr::from_abstract_name(name)
        .and_then(|address| UnixListener::bind_addr(&address))
        .ok()
}

thread_local! {
    /// Reservations of the test that runs in this thread, by names of abstract Unix sockets.
    static RESERVED: RefCell<Vec<UnixListener>> = const { RefCell::new(Vec::new()) };
}

/// `count` media ports of 127.0.0.1 (an even number), first and last, not reserved by another test and not claimed by a
/// program: below the ephemeral ports, and above those of [`free_port`] and of the programs beside it. They are
/// reserved until the end of the test, because its program claims them later, and again after a restart.
pub fn media_ports(count: u16) -> (u16, u16) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    const FIRST: u32 = 20_000;
    const END: u32 = 32_768;
    // Processes with neighbouring numbers begin far from each other.
    let start = std::process::id().wrapping_mul(0x9e37_79b9) >> 4;
    let count = u32::from(count);
    let free = || {
        let claimed = claimed_ports();
        (0..1_000)
            .map(|_| NEXT.fetch_add(count, Ordering::Relaxed).wrapping_add(start))
            .map(|at| FIRST + at % (END - FIRST) / 2 * 2)
            .map(|first| (first, first + count - 1))
            .find(|&(first, last)| {
                let apart = |&(other, to): &(u32, u32)| last < other || to < first;
                last < END && claimed.iter().all(apart)
            })
    };
    // Programs with the default ranges, or other tests, may have all of them for a while.
    let found = (0..1_200).find_map(|wait| {
        if wait > 0 {
            std::thread::sleep(Duration::from_millis(100));
        }
        // One test at a time chooses.
        let _lock = abstract_name("hornwork-test-media-lock")?;
        if wait > 100 {
            // Those of programs that this test has ended.
            RESERVED.with_borrow_mut(|own| drop(own.pop()));
        }
        let (first, last) = free()?;
        let reserved = abstract_name(&format!("{RESERVATION}{first}-{last}"))?;
        RESERVED.with_borrow_mut(|own| own.insert(0, reserved));
        Some((first, last))
    });
    let (first, last) = found.expect("free media ports");
    (first as u16, last as u16)
}

/// Beginning of the names of reserved and of claimed media ports.
const RESERVATION: &str = "hornwork-test-media/127.0.0.1/";
const CLAIM: &str = "hornwork-media/127.0.0.1/";

/// Media ports of 127.0.0.1 that tests reserve or programs claim, first and last.
fn claimed_ports() -> Vec<(u32, u32)> {
    let claimed = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let range = |line: &str| {
        let name = line.split_once('@')?.1;
        let name = name
            .strip_prefix(CLAIM)
            .or_else(|| name.strip_prefix(RESERVATION))?;
        let (first, last) = name.split('/').next()?.split_once('-')?;
        Some((first.parse().ok()?, last.parse().ok()?))
    };
    claimed.lines().filter_map(range).collect()
}

/// Whether a program receives at this port of 127.0.0.1, or of all addresses, also by a socket of IPv6: over UDP, or it
/// listens over TCP.
pub fn is_open(port: u16) -> bool {
    ["udp", "tcp", "udp6", "tcp6"].into_iter().any(|kind| {
        let table = std::fs::read_to_string(format!("/proc/net/{kind}"));
        let address = format!(":{port:04X}");
        let is_here = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().take(4).collect();
            // The state of a socket that listens; one of an earlier connection may be there still.
            let receives = kind.starts_with("udp") || words.get(3) == Some(&"0A");
            receives && words.get(1).is_some_and(|local| local.ends_with(&address))
        };
        table.unwrap_or_default().lines().any(is_here)
    })
}

/// A child process that ends with this value.
pub struct Process {
    child: Child,
    /// File with its output.
    pub log: PathBuf,
}

impl Process {
    /// Starts it with standard output and error in `log`.
    pub fn start(command: &mut Command, log: &Path) -> Process {
        let file = File::create(log).expect("log file");
        let copy = file.try_clone().expect("log file");
        let child = command
            .stdout(file)
            .stderr(copy)
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        Process {
            child,
            log: log.to_owned(),
        }
    }

    /// Its output so far. A border writes its log on a thread of its own, so this waits a moment for the lines of an
    /// event that the test has already observed otherwise.
    pub fn log(&self) -> String {
        std::thread::sleep(Duration::from_millis(60));
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Waits until this port is open, see [`is_open`]; earlier requests would get an ICMP error.
    pub fn at_port(self, port: u16) -> Process {
        let begun = Instant::now();
        while !is_open(port) {
            assert!(
                begun.elapsed() < Duration::from_secs(40),
                "nothing came to port {port}: {}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
        self
    }

    /// Its standard input, if piped.
    pub fn stdin(&mut self) -> std::process::ChildStdin {
        self.child.stdin.take().expect("piped input")
    }

    /// Waits for its end: whether it succeeded, or `None` after `limit`.
    pub fn wait(&mut self, limit: Duration) -> Option<bool> {
        let end = Instant::now() + limit;
        while Instant::now() < end {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Some(status.success());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        None
    }

    /// Sends a signal by name.
    pub fn signal(&self, name: &str) {
        let _ = Command::new("kill")
            .args([&format!("-{name}"), &self.child.id().to_string()])
            .status();
    }

    /// Its process number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process number of an ended child may be reused.
        if !matches!(self.child.try_wait(), Ok(None)) {
            return;
        }
        self.signal("TERM");
        if self.wait(Duration::from_secs(1)).is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// An example configuration with ports of this test, and extra lines at its end.
pub fn example(name: &str, sip: u16, trunk: u16, media: (u16, u16), more: &str) -> String {
    let text = std::fs::read_to_string(root().join("examples").join(name)).expect("example");
    let text = text
        .replace(":5060", &format!(":{sip}"))
        .replace(":5080", &format!(":{trunk}"))
        .replace("20000-26999", &format!("{}-{}", media.0, media.1));
    format!("{text}\n{more}")
}

/// Starts the border with this configuration and waits until it answers an OPTIONS.
pub fn border(folder: &Path, configuration: &str, sip: u16) -> Process {
    let file = folder.join("hornwork.toml");
    std::fs::write(&file, configuration).expect("configuration");
    let process = Process::start(
        Command::new(env!("CARGO_BIN_EXE_hornwork"))
            .arg("run")
            .arg("-c")
            .arg(&file)
            .stdin(Stdio::null()),
        &folder.join("border.log"),
    );
    let end = Instant::now() + Duration::from_secs(30);
    while !answers_options(sip) {
        assert!(
            Instant::now() < end,
            "the border does not answer: {}",
            process.log()
        );
    }
    process
}

/// Whether an OPTIONS over UDP is answered within 200 ms: for loops.
pub fn answers_options(sip: u16) -> bool {
    answers_options_within(sip, Duration::from_millis(200))
}

/// Whether an OPTIONS over UDP is answered, also on a machine that stalls.
pub fn serves(sip: u16) -> bool {
    answers_options_within(sip, Duration::from_secs(5))
}

fn answers_options_within(sip: u16, limit: Duration) -> bool {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("socket");
    let local = socket.local_addr().expect("address");
    let stamp = local.port();
    let request = format!(
        "OPTIONS sip:127.0.0.1:{sip} SIP/2.0\r\nVia: SIP/2.0/UDP {local};branch=z9hG4bKprobe{stamp}{};rport\r\n\
         Max-Forwards: 70\r\nFrom: <sip:probe@{local}>;tag=probe\r\nTo: <sip:127.0.0.1:{sip}>\r\n\
         Call-ID: probe-{stamp}@{local}\r\nCSeq: 1 OPTIONS\r\nContent-Length: 0\r\n\r\n",
        std::process::id()
    );
    let _ = socket.set_read_timeout(Some(limit));
    let mut answer = [0; 2048];
    socket
        .send_to(request.as_bytes(), ("127.0.0.1", sip))
        .is_ok()
        && socket
            .recv(&mut answer)
            .is_ok_and(|length| answer[..length].starts_with(b"SIP/2.0 200"))
}
