//! Registrations survive the program: after `kill -9` and a restart phones are reachable at once, and damage to the
//! file costs at most the file.

use crate::common;

use common::{Process, free_port, installed, scratch, serves};
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A phone, a caller or a PBX: one socket.
struct Agent {
    socket: UdpSocket,
    border: u16,
}

impl Agent {
    fn new(border: u16) -> Agent {
        Agent::at(0, border)
    }

    fn at(port: u16, border: u16) -> Agent {
        let socket = UdpSocket::bind(("127.0.0.1", port)).expect("socket");
        Agent { socket, border }
    }

    fn send(&self, start: &str, cseq: u32, method: &str, to: &str, more: &str) {
        let local = self.socket.local_addr().expect("address");
        let call = format!("{method}-{cseq}-{}", local.port());
        let message = format!(
            "{start} SIP/2.0\r\nVia: SIP/2.0/UDP {local};branch=z9hG4bK{call}\r\nMax-Forwards: 70\r\nFrom: <{to}>;tag=a\r\n\
             To: <{to}>\r\nCall-ID: {call}\r\nCSeq: {cseq} {method}\r\n{more}Content-Length: 0\r\n\r\n"
        );
        let to = ("127.0.0.1", self.border);
        self.socket.send_to(message.as_bytes(), to).expect("sent");
    }

    /// The next message that begins like this.
    fn receive(&self, start: &str) -> Option<String> {
        let end = Instant::now() + Duration::from_secs(20);
        let mut bytes = [0; 8_192];
        while let Some(left) = end.checked_duration_since(Instant::now()) {
            let limit = left.max(Duration::from_millis(1));
            self.socket.set_read_timeout(Some(limit)).expect("timeout");
            if let Ok(length) = self.socket.recv(&mut bytes) {
                let message = String::from_utf8_lossy(&bytes[..length]).into_owned();
                if message.starts_with(start) {
                    return Some(message);
                }
            }
        }
        None
    }

    /// Registers a contact behind NAT: reachable only at the source of the REGISTER.
    fn register(&self, user: &str, cseq: u32, expires: u32) {
        let more = format!("Contact: <sip:{user}@192.168.3.3:5060>;expires={expires}\r\n");
        let to = format!("sip:{user}@127.0.0.1");
        self.send("REGISTER sip:127.0.0.1", cseq, "REGISTER", &to, &more);
    }

    fn assert_registers(&self, user: &str, cseq: u32, expires: u32) {
        self.register(user, cseq, expires);
        assert!(
            self.receive("SIP/2.0 200").is_some(),
            "{user} is not registered"
        );
    }

    fn call(&self, uri: &str, cseq: u32) {
        let contact = self.socket.local_addr().expect("address");
        let more = format!("Contact: <sip:caller@{contact}>\r\n");
        self.send(&format!("INVITE {uri}"), cseq, "INVITE", uri, &more);
    }
}

/// Answers a REGISTER with 200 and its own Contact.
fn accept(core: &Agent, request: &str) {
    let kept = ["Via:", "From:", "To:", "Call-ID:", "CSeq:", "Contact:"];
    let same: String = request
        .lines()
        .filter(|line| kept.iter().any(|name| line.starts_with(name)))
        .map(|line| format!("{line}\r\n"))
        .collect();
    let answer = format!("SIP/2.0 200 OK\r\n{same}Content-Length: 0\r\n\r\n");
    let to = ("127.0.0.1", core.border);
    core.socket.send_to(answer.as_bytes(), to).expect("sent");
}

/// A configuration with a local registrar, and media ports of its own: tests run beside each other.
fn local(sip: u16, store: &Path, more: &str) -> String {
    let (first, last) = common::media_ports(60);
    format!(
        "[[interface]]\nname = \"out\"\nkind = \"access\"\nlisten = \"udp:127.0.0.1:{sip}\"\nregister = \"local\"\n\
         media = {{ address = \"127.0.0.1\", ports = \"{first}-{last}\" }}\n[[route]]\nregistered = true\nmedia = \"bypass\"\n[registrar]\nstore = \"{}\"\n{more}",
        store.display()
    )
}

/// Starts the border and waits until it answers.
fn start_border(folder: &Path, text: &str, sip: u16) -> Process {
    common::border(folder, text, sip)
}

/// Waits until the file, or its log of transactions, has the contacts of these users.
fn until_stored(store: &Path, users: &[&str]) {
    let end = Instant::now() + Duration::from_secs(20);
    let log = format!("{}-wal", store.display());
    loop {
        let bytes = [store, Path::new(&log)].map(|file| std::fs::read(file).unwrap_or_default());
        let text = String::from_utf8_lossy(&bytes.concat()).into_owned();
        let is_there = |user: &&&str| text.contains(&format!("sip:{user}@192.168.3.3"));
        let missing = users.iter().find(|user| !is_there(user));
        let Some(missing) = missing else { break };
        assert!(Instant::now() < end, "{missing} is not stored");
        std::thread::sleep(Duration::from_millis(50));
    }
    // The end of the transaction.
    std::thread::sleep(Duration::from_millis(100));
}

fn kill(mut process: Process) -> String {
    process.signal("KILL");
    assert!(process.wait(Duration::from_secs(30)).is_some());
    process.log()
}

/// Waits until the output of a process contains this text.
fn until(process: &Process, what: &str) {
    let end = Instant::now() + Duration::from_secs(40);
    while !process.log().contains(what) {
        assert!(Instant::now() < end, "no {what}: {}", process.log());
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn phones_are_reachable_at_once_after_kill_9() {
    let folder = scratch("restart");
    let (sip, store) = (free_port(), folder.join("registrations.db"));
    let text = local(sip, &store, "");
    let process = start_border(&folder, &text, sip);
    let phone = Agent::new(sip);
    phone.assert_registers("1001", 1, 600);
    phone.assert_registers("1001", 2, 0);
    phone.assert_registers("1000", 3, 600);
    until_stored(&store, &["1000"]);
    for file in [store.clone(), folder.join("registrations.db-wal")] {
        let mode = std::fs::metadata(&file).expect("file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{}", file.display());
    }
    kill(process);

    let mut process = start_border(&folder, &text, sip);
    let caller = Agent::new(sip);
    caller.call(&format!("sip:1000@127.0.0.1:{sip}"), 1);
    let invite = phone
        .receive("INVITE ")
        .expect("the call reaches the phone");
    assert!(
        invite.starts_with("INVITE sip:1000@192.168.3.3:5060"),
        "{invite}"
    );
    until(&process, "registrations_restored");
    assert!(process.log().contains("contacts=1"), "{}", process.log());
    caller.call(&format!("sip:1001@127.0.0.1:{sip}"), 2);
    assert!(caller.receive("SIP/2.0 4").is_some(), "it was removed");
    // The file also survives an orderly stop.
    phone.assert_registers("1002", 4, 600);
    process.signal("TERM");
    until(&process, "drain_started");
    process.signal("TERM");
    assert_eq!(process.wait(Duration::from_secs(30)), Some(true));
    let _process = start_border(&folder, &text, sip);
    caller.call(&format!("sip:1002@127.0.0.1:{sip}"), 3);
    assert!(phone.receive("INVITE sip:1002@").is_some());
}

#[test]
fn after_kill_9_the_pbx_reaches_phones_whose_registrations_were_passed_to_it() {
    let folder = scratch("restart-pass");
    let (sip, inner, core) = (free_port(), free_port(), free_port());
    let store = folder.join("registrations.db");
    let (first, last) = common::media_ports(20);
    let media = format!("media = {{ address = \"127.0.0.1\", ports = \"{first}-{last}\" }}\n");
    let text = format!(
        "[[interface]]\nname = \"out\"\nkind = \"access\"\nlisten = \"udp:127.0.0.1:{sip}\"\nregister = \"pass:pbx\"\n\
         authenticate = \"trunk\"\n{media}[[interface]]\nname = \"in\"\nkind = \"core\"\nlisten = \"udp:127.0.0.1:{inner}\"\n\
         {media}[[trunk]]\nname = \"pbx\"\ninterface = \"in\"\ntarget = \"udp:127.0.0.1:{core}\"\n[registrar]\nstore = \"{}\"\n",
        store.display()
    );
    let process = start_border(&folder, &text, sip);
    let (phone, core) = (Agent::new(sip), Agent::at(core, inner));
    phone.register("1000", 1, 600);
    let passed = core.receive("REGISTER ").expect("passed to the PBX");
    let contact = passed
        .lines()
        .find_map(|line| line.strip_prefix("Contact: <"));
    let contact = contact.and_then(|rest| rest.split('>').next());
    let contact = contact.expect("Contact").to_owned();
    assert!(contact.contains(";hw="), "{passed}");
    accept(&core, &passed);
    assert!(phone.receive("SIP/2.0 200").is_some());
    until_stored(&store, &["1000"]);
    kill(process);

    let _process = start_border(&folder, &text, sip);
    core.call(&contact, 1);
    let invite = phone
        .receive("INVITE ")
        .expect("the call reaches the phone");
    assert!(
        invite.starts_with("INVITE sip:1000@192.168.3.3:5060"),
        "{invite}"
    );
    // The border answers retransmissions itself: the PBX receives nothing.
    let more = "Contact: <sip:1000@192.168.3.3:5060>;expires=600\r\n";
    phone.send(
        "REGISTER sip:127.0.0.1",
        1,
        "REGISTER",
        "sip:1000@127.0.0.1",
        more,
    );
    assert!(phone.receive("SIP/2.0 200").is_some());
    core.socket.set_nonblocking(true).expect("socket");
    let mut bytes = [0; 8_192];
    while let Ok(length) = core.socket.recv(&mut bytes) {
        assert!(!bytes[..length].starts_with(b"REGISTER"), "passed on again");
    }
}

#[test]
fn registrations_of_two_workers_are_restored_to_three() {
    let folder = scratch("restart-workers");
    let (sip, store) = (free_port(), folder.join("registrations.db"));
    let process = start_border(&folder, &local(sip, &store, "[sip]\nworkers = 2\n"), sip);
    let phone = Agent::new(sip);
    let users: Vec<String> = (0..20).map(|number| (1_000 + number).to_string()).collect();
    for (cseq, user) in (1..).zip(&users) {
        phone.assert_registers(user, cseq, 600);
    }
    // A change at a sleeping worker is written, too.
    let names: Vec<&str> = users.iter().map(String::as_str).collect();
    until_stored(&store, &names);
    kill(process);
    let process = start_border(&folder, &local(sip, &store, "[sip]\nworkers = 3\n"), sip);
    let caller = Agent::new(sip);
    for (cseq, user) in (1..).zip(&users) {
        caller.call(&format!("sip:{user}@127.0.0.1:{sip}"), cseq);
        let invite = format!("INVITE sip:{user}@");
        assert!(
            phone.receive(&invite).is_some(),
            "{user}: {}",
            process.log()
        );
    }
}

#[test]
fn file_is_exclusive_and_check_prints_its_path() {
    let folder = scratch("restart-two");
    let (sip, other, store) = (free_port(), free_port(), folder.join("registrations.db"));
    let _process = start_border(&folder, &local(sip, &store, ""), sip);
    let file = folder.join("second.toml");
    std::fs::write(&file, local(other, &store, "")).expect("file");
    let hornwork = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hornwork"));
        command.args(arguments).arg(&file).stdin(Stdio::null());
        command.env_remove("STATE_DIRECTORY");
        command
    };
    let mut second = Process::start(&mut hornwork(&["run", "-c"]), &folder.join("second.log"));
    assert_eq!(second.wait(Duration::from_secs(30)), Some(false));
    let log = second.log();
    assert!(
        log.contains("another program is using it") && log.contains("remedy: "),
        "{log}"
    );

    let check = |text: String, state: Option<&Path>| {
        std::fs::write(&file, text).expect("file");
        let mut command = hornwork(&["check", "--strict", "-c"]);
        if let Some(state) = state {
            command.env("STATE_DIRECTORY", state);
        }
        let done = command.output().expect("hornwork");
        let log = String::from_utf8_lossy(&done.stdout).into_owned();
        (done.status.code(), log)
    };
    let trusted = |text: String| {
        text.replace(
            "register = \"local\"\n",
            "register = \"local\"\nallow = \"127.0.0.1/32\"\n",
        )
    };
    let (code, log) = check(trusted(local(other, &store, "")), None);
    assert_eq!(code, Some(0), "{log}");
    assert!(
        log.contains(&format!("stored in {}", store.display())),
        "{log}"
    );
    let nowhere = Path::new("/proc/nowhere/registrations.db");
    let (code, log) = check(trusted(local(other, nowhere, "")), None);
    assert_eq!(code, Some(2), "{log}");
    assert!(
        log.contains("WARNING: registrations would be lost at a restart"),
        "{log}"
    );
    let usual = trusted(local(other, nowhere, ""))
        .replace(&format!("store = \"{}\"\n", nowhere.display()), "");
    let (_, log) = check(usual.clone(), None);
    assert!(log.contains("registrations: in memory"), "{log}");
    let (code, log) = check(usual, Some(&folder));
    assert_eq!(code, Some(0), "{log}");
    assert!(
        log.contains(&format!("stored in {}", store.display())),
        "{log}"
    );
    let (_, log) = check(trusted(local(other, Path::new("none"), "")), Some(&folder));
    assert!(log.contains("registrations: in memory"), "{log}");
}

#[test]
fn unreadable_file_is_moved_aside_and_unwritable_file_costs_no_call() {
    let folder = scratch("restart-corrupt");
    let (sip, store) = (free_port(), folder.join("registrations.db"));
    std::fs::write(
        &store,
        "no database at all, and longer than the header of one: ".repeat(40),
    )
    .expect("file");
    let process = start_border(&folder, &local(sip, &store, ""), sip);
    until(&process, "registration_store_replaced");
    assert!(folder.join("registrations.db.corrupt").is_file());
    let phone = Agent::new(sip);
    phone.assert_registers("1000", 1, 600);
    until_stored(&store, &["1000"]);
    kill(process);
    let process = start_border(&folder, &local(sip, &store, ""), sip);
    let caller = Agent::new(sip);
    caller.call(&format!("sip:1000@127.0.0.1:{sip}"), 1);
    assert!(phone.receive("INVITE ").is_some(), "{}", process.log());
    // The file is deleted while the program runs: it is written again.
    std::fs::remove_file(&store).expect("file");
    until(&process, "registration_store_recovered");
    // The log of transactions of the deleted file may be there still.
    std::thread::sleep(Duration::from_secs(1));
    until_stored(&store, &["1000"]);
    kill(process);
    let process = start_border(&folder, &local(sip, &store, ""), sip);
    until(&process, "contacts=1");
    kill(process);

    let nowhere = PathBuf::from("/proc/nowhere/registrations.db");
    let process = start_border(&folder, &local(sip, &nowhere, ""), sip);
    until(&process, "registration_store_failed");
    assert!(process.log().contains("remedy="), "{}", process.log());
    phone.assert_registers("1000", 2, 600);
    caller.call(&format!("sip:1000@127.0.0.1:{sip}"), 2);
    assert!(phone.receive("INVITE ").is_some(), "{}", process.log());
}

/// A separate file system that is unmounted with this value.
struct Tmpfs(PathBuf);

impl Tmpfs {
    fn mount(at: &Path) -> Option<Tmpfs> {
        std::fs::create_dir_all(at).expect("folder");
        let done = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=1m", "hornwork-test"])
            .arg(at)
            .output();
        if done.is_ok_and(|done| done.status.success()) {
            return Some(Tmpfs(at.to_owned()));
        }
        println!("skipped: no right to mount a file system");
        None
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn full_disk_blocks_no_call_and_changes_are_written_later() {
    let folder = scratch("restart-full");
    let disk = folder.join("disk");
    let Some(_tmpfs) = Tmpfs::mount(&disk) else {
        return;
    };
    let (sip, store) = (free_port(), disk.join("registrations.db"));
    let text = local(sip, &store, "");
    let process = start_border(&folder, &text, sip);
    let phone = Agent::new(sip);
    phone.assert_registers("1000", 1, 600);
    until_stored(&store, &["1000"]);
    let fill = disk.join("fill");
    let filled = std::fs::write(&fill, vec![0; 2 << 20]);
    assert!(filled.is_err(), "the disk is full");
    for number in 0..40 {
        phone.assert_registers(&(2_000 + number).to_string(), 2 + number, 600);
    }
    until(&process, "registration_store_failed");
    assert!(process.log().contains("free space"), "{}", process.log());
    let caller = Agent::new(sip);
    caller.call(&format!("sip:2000@127.0.0.1:{sip}"), 1);
    assert!(phone.receive("INVITE ").is_some());
    // A start on a full disk still reads the file.
    kill(process);
    let process = start_border(&folder, &text, sip);
    caller.call(&format!("sip:1000@127.0.0.1:{sip}"), 2);
    assert!(
        phone.receive("INVITE sip:1000@").is_some(),
        "{}",
        process.log()
    );
    phone.assert_registers("3000", 50, 600);
    for number in 0..40 {
        phone.assert_registers(&(4_000 + number).to_string(), 60 + number, 600);
    }
    until(&process, "registration_store_failed");
    std::fs::remove_file(&fill).expect("file");
    until(&process, "registration_store_recovered");
    until_stored(&store, &["1000", "3000"]);
    kill(process);
    let process = start_border(&folder, &text, sip);
    caller.call(&format!("sip:3000@127.0.0.1:{sip}"), 3);
    assert!(
        phone.receive("INVITE sip:3000@").is_some(),
        "{}",
        process.log()
    );
    caller.call(&format!("sip:1000@127.0.0.1:{sip}"), 4);
    assert!(
        phone.receive("INVITE sip:1000@").is_some(),
        "{}",
        process.log()
    );
    assert!(serves(sip));
}

/// A mounted file system in a file, unmounted with this value.
struct Image(PathBuf);

impl Image {
    fn mount(folder: &Path) -> Option<Image> {
        let (image, at) = (folder.join("image"), folder.join("disk"));
        std::fs::create_dir_all(&at).expect("folder");
        std::fs::write(&image, vec![0; 16 << 20]).expect("image");
        let run = |program: &str, arguments: &[&str], path: &Path| {
            let mut command = Command::new(program);
            let done = command.args(arguments).arg(path).output();
            done.is_ok_and(|done| done.status.success())
        };
        let image = image.display().to_string();
        let made = run("mkfs.ext4", &["-q"], Path::new(&image));
        if made && run("mount", &["-o", "loop", &image], &at) {
            return Some(Image(at));
        }
        println!("skipped: no right to mount a file system");
        None
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// A file system that blocks writes while this value exists. A program that waits for it could not even be killed.
struct Frozen(PathBuf);

impl Frozen {
    fn freeze(at: &Path) -> Frozen {
        let done = Command::new("fsfreeze").arg("-f").arg(at).status();
        assert!(done.expect("fsfreeze").success());
        Frozen(at.to_owned())
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let _ = Command::new("fsfreeze").arg("-u").arg(&self.0).status();
    }
}

#[test]
fn stalled_disk_blocks_no_registration_and_no_call() {
    if !installed(&["mkfs.ext4", "mount", "fsfreeze"]) {
        return;
    }
    let folder = scratch("restart-frozen");
    let Some(disk) = Image::mount(&folder) else {
        return;
    };
    let sip = free_port();
    let store = disk.0.join("registrations.db");
    let text = local(sip, &store, "");
    let process = start_border(&folder, &text, sip);
    let (phone, caller) = (Agent::new(sip), Agent::new(sip));
    phone.assert_registers("1000", 1, 600);
    until_stored(&store, &["1000"]);
    let frozen = Frozen::freeze(&disk.0);
    let begun = Instant::now();
    for number in 0..1_000 {
        phone.assert_registers(&(2_000 + number).to_string(), 2 + number, 600);
    }
    for number in 0..10 {
        caller.call(
            &format!("sip:{}@127.0.0.1:{sip}", 2_000 + number),
            1 + number,
        );
        assert!(phone.receive("INVITE ").is_some());
    }
    // A border that waits for the disk answers nothing.
    assert!(begun.elapsed() < Duration::from_secs(60));
    until(&process, "registration_store_failed");
    assert!(process.log().contains("has not responded"));
    drop(frozen);
    until(&process, "registration_store_recovered");
    until_stored(&store, &["2999"]);
    kill(process);
    let _process = start_border(&folder, &text, sip);
    caller.call(&format!("sip:2999@127.0.0.1:{sip}"), 100);
    assert!(phone.receive("INVITE sip:2999@").is_some());
}
