//! The daemon `charon`: its process, in namespaces of its own, and its connections to this program: a TUN device for
//! IKE messages, a pipe with its log, and the socket of VICI.
//!
//! This program starts itself with [`IKE_DAEMON`]: that process enters the namespaces, makes the device, sends its open
//! file back, and becomes the daemon. In its network the daemon is a host with this end's outer address, so it sees the
//! real addresses of peers, and no packet reaches it but those that this program passes on.

use super::cannot;
use super::plan::ExchangePlan;
use net::TunDevice;
use protect::esp::AddressPrefix;
use protect::ike::daemon_settings;
use std::collections::BTreeSet;
use std::fs::DirBuilder;
use std::io::{self, Read as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitCode, ExitStatus, Stdio};
use std::time::Duration;

/// This program, also when its file was replaced by another version.
const THIS_PROGRAM: &str = "/proc/self/exe";
/// First argument of the process that becomes the daemon; not a command for users.
const IKE_DAEMON: &str = "--ike-daemon";
/// Second argument: tries the rights and ends.
const TRY: &str = "--try";
/// Places of the daemon: Debian's and others'.
const PROGRAMS: [&str; 2] = ["/usr/lib/ipsec/charon", "/usr/libexec/ipsec/charon"];
/// Plugins that are not part of the smallest installation, with the Debian packages that have them.
const PLUGINS: [(&str, &str); 3] = [
    ("vici", "strongswan-swanctl"),
    ("kernel-libipsec", "libcharon-extra-plugins"),
    ("openssl", "libstrongswan-standard-plugins"),
];
/// Beginning of the names of its folders, before the number of the process.
const FOLDER: &str = "hornwork-ike-";
const SETTINGS: &str = "strongswan.conf";
const ADDRESSES: &str = "addresses";
/// Its place where the daemon looks for it.
const SETTINGS_TARGET: &str = "/etc/strongswan.conf";
const DEVICE: &str = "ike";
/// IKE messages are not fragmented on the way to this program.
const DEVICE_MTU: usize = 65_000;
/// Longest time for its start.
const START: Duration = Duration::from_secs(10);

/// The running daemon. It ends with this value.
#[derive(Debug)]
pub(super) struct Daemon {
    child: Child,
    tun: TunDevice,
    log: ChildStderr,
    folder: PathBuf,
}

/// Where the daemon is, with all its plugins.
fn program() -> io::Result<&'static Path> {
    let remedy = "install strongSwan (Debian: strongswan-charon strongswan-swanctl libcharon-extra-plugins libstrongswan-standard-plugins), or use manual keys";
    let found = PROGRAMS.iter().map(Path::new).find(|path| path.exists());
    let Some(program) = found else {
        return Err(cannot(
            "IKEv2 needs strongSwan's daemon charon, which is not installed",
            remedy,
        ));
    };
    for (plugin, package) in PLUGINS {
        let file = format!("plugins/libstrongswan-{plugin}.so");
        if !program.with_file_name(file).exists() {
            let what =
                format!("IKEv2 needs the plugin {plugin} of strongSwan, which is not installed");
            return Err(cannot(
                what,
                &format!("install it (Debian: {package}), or use manual keys"),
            ));
        }
    }
    Ok(program)
}

/// The addresses of the daemon, one a line: the outer one, and one of each local network. Without the latter its data
/// path, which gets no packets, refuses the tunnels.
fn addresses(plan: &ExchangePlan) -> String {
    let local = plan.local.ip();
    let networks = plan
        .tunnels
        .iter()
        .flat_map(|tunnel| &tunnel.local_networks)
        .map(AddressPrefix::address)
        .filter(|address| !address.is_unspecified() && *address != local);
    let networks: BTreeSet<IpAddr> = networks.collect();
    let mut text = format!("{local}\n");
    for address in networks {
        text.push_str(&format!("{address}\n"));
    }
    text
}

/// Removes folders of this user's processes that were killed.
fn remove_stale(base: &Path) {
    let Ok(entries) = std::fs::read_dir(base) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let process = name
            .to_str()
            .and_then(|name| name.strip_prefix(FOLDER))
            .and_then(|rest| rest.split_once('-'))
            .and_then(|(process, _)| process.parse::<u32>().ok());
        let is_own = entry
            .metadata()
            .is_ok_and(|about| about.is_dir() && about.uid() == net::user_id());
        if let Some(process) = process
            && is_own
            && !Path::new(&format!("/proc/{process}")).exists()
        {
            // One that stays is harmless.
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// A folder that only this user can enter.
fn private_folder() -> io::Result<PathBuf> {
    let runtime = std::env::var_os("RUNTIME_DIRECTORY").unwrap_or_default();
    let runtime = std::env::split_paths(&runtime).next();
    let base = runtime
        .filter(|path| path.is_absolute())
        .unwrap_or_else(std::env::temp_dir);
    remove_stale(&base);
    let random = net::entropy()?.u64();
    let process = std::process::id();
    let folder = base.join(format!("{FOLDER}{process}-{random:016x}"));
    DirBuilder::new().mode(0o700).create(&folder)?;
    Ok(folder)
}

/// Checks that the daemon is installed and that this user may start it.
///
/// # Errors
/// The missing part or right, with its remedy.
pub(crate) fn check() -> io::Result<()> {
    program()?;
    let output = Command::new(THIS_PROGRAM)
        .args([IKE_DAEMON, TRY])
        .stdin(Stdio::null())
        .output()?;
    match output.status.success() {
        true => Ok(()),
        false => Err(io::Error::other(
            String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        )),
    }
}

impl Daemon {
    /// Starts the daemon of a key exchange.
    ///
    /// # Errors
    /// It is not installed, a right is missing, or it ends at once.
    pub(super) fn start(plan: &ExchangePlan) -> io::Result<Daemon> {
        let program = program()?;
        let folder = private_folder()?;
        std::fs::write(folder.join(SETTINGS), daemon_settings())?;
        std::fs::write(folder.join(ADDRESSES), addresses(plan))?;
        let started = Daemon::start_in(&folder, program);
        if started.is_err() {
            // Nothing else is in it.
            let _ = std::fs::remove_dir_all(&folder);
        }
        started
    }

    fn start_in(folder: &Path, program: &Path) -> io::Result<Daemon> {
        let (here, there) = UnixStream::pair()?;
        here.set_read_timeout(Some(START))?;
        let mut command = Command::new(THIS_PROGRAM);
        command
            .arg(IKE_DAEMON)
            .args([folder, program])
            .stdin(OwnedFd::from(there))
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        net::end_with_parent(&mut command);
        // Ctrl-C of a terminal stops this program, which then ends the daemon: it deletes its associations at the peers
        // before.
        command.process_group(0);
        let mut child = command.spawn()?;
        // The other end belongs to the child alone.
        drop(command);
        let mut log = child.stderr.take().ok_or(io::ErrorKind::BrokenPipe)?;
        match net::receive_descriptor(here.as_fd()) {
            Ok(descriptor) => Ok(Daemon {
                child,
                tun: TunDevice::from_descriptor(descriptor),
                log,
                folder: folder.to_owned(),
            }),
            Err(error) => {
                // It has ended, or is useless.
                let _ = child.kill();
                let _ = child.wait();
                let mut said = String::new();
                let _ = log.read_to_string(&mut said);
                Err(io::Error::other(match said.trim() {
                    "" => format!("IKEv2: the daemon did not start: {error}"),
                    said => said.to_owned(),
                }))
            }
        }
    }

    /// The device of IKE messages.
    pub(super) fn tun(&self) -> &TunDevice {
        &self.tun
    }

    /// The pipe with the log.
    pub(super) fn log(&self) -> BorrowedFd<'_> {
        self.log.as_fd()
    }

    /// Reads from the log; 0 at its end. It may wait unless the pipe is readable.
    pub(super) fn read_log(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.log.read(into)
    }

    /// Connects to VICI; an error until the daemon listens.
    pub(super) fn connect(&self) -> io::Result<UnixStream> {
        UnixStream::connect(self.folder.join("charon.vici"))
    }

    /// The exit status, once it has ended.
    pub(super) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Requests its end: it deletes its associations at the peers.
    pub(super) fn request_end(&self) {
        // If it has ended, there is nothing to do.
        let _ = net::request_end(&self.child);
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Errors: the process has ended already, or the folder was removed.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// The process that becomes the daemon, if the arguments of this process say so.
pub(crate) fn ike_daemon() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next()? != IKE_DAEMON {
        return None;
    }
    let arguments: Vec<PathBuf> = arguments.map(PathBuf::from).collect();
    let done = match &arguments[..] {
        [only] if only.as_os_str() == TRY => enter().map(drop),
        [folder, program] => become_daemon(folder, program),
        _ => Err(io::ErrorKind::InvalidInput.into()),
    };
    match done {
        Ok(()) => Some(ExitCode::SUCCESS),
        Err(error) => {
            eprintln!("{error}");
            Some(ExitCode::from(3))
        }
    }
}

/// Enters namespaces and makes the device.
fn enter() -> io::Result<TunDevice> {
    net::isolate_process().map_err(|error| {
        cannot(
            format!("IKEv2: the daemon cannot have a network of its own: {error}"),
            "permit user namespaces to this user (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone; in a unit RestrictNamespaces, packaging/hornwork-ike.conf), give the program CAP_SYS_ADMIN, or use manual keys",
        )
    })?;
    TunDevice::create(DEVICE).map_err(|error| {
        cannot(
            format!("IKEv2: a TUN device for the daemon was denied: {error}"),
            "make /dev/net/tun accessible to this user",
        )
    })
}

fn become_daemon(folder: &Path, program: &Path) -> io::Result<()> {
    let text = std::fs::read_to_string(folder.join(ADDRESSES))?;
    let addresses: Result<Vec<IpAddr>, _> = text.lines().map(str::parse).collect();
    let addresses = addresses.map_err(io::Error::other)?;
    let local = *addresses.first().ok_or(io::ErrorKind::InvalidInput)?;
    let tun = enter()?;
    TunDevice::set_up(DEVICE, DEVICE_MTU)?;
    // A tunnel between hosts has a route to the peer's address, but the peer's messages come from this device all the
    // same. Most machines do not check it (rp_filter 0 or 2), so an error here has no effect on them.
    for of in ["all", DEVICE] {
        let _ = std::fs::write(format!("/proc/sys/net/ipv4/conf/{of}/rp_filter"), "0");
    }
    for address in addresses {
        TunDevice::add_address(DEVICE, address)?;
    }
    let everywhere: IpAddr = match local {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    TunDevice::add_route(DEVICE, (everywhere, 0), None)?;
    net::bind_mount(&folder.join(SETTINGS), Path::new(SETTINGS_TARGET)).map_err(|error| {
        cannot(
            format!("IKEv2: {SETTINGS_TARGET} cannot be replaced for the daemon: {error}"),
            "install the package libstrongswan, which has this file",
        )
    })?;
    // Without names of protocols and ports the daemon writes numbers.
    for names in ["/etc/services", "/etc/protocols"] {
        let names = Path::new(names);
        if names.exists() {
            net::bind_mount(Path::new("/dev/null"), names)?;
        }
    }
    // The daemon's names below /run are fixed, and may be in use by another daemon of this machine.
    net::bind_mount(folder, Path::new("/run"))?;
    net::send_descriptor(io::stdin().as_fd(), tun.as_fd())?;
    let mut command = Command::new(program);
    command.stdin(Stdio::null());
    // Entering the namespaces has ended the request of the parent.
    net::end_with_parent(&mut command);
    Err(command.exec())
}
