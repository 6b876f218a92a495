//! strongSwan between the two hosts: IKEv2 and ESP in UDP by its daemon charon in each, with its data path in user
//! space (kernel-libipsec), so that no IPsec of the kernel is needed.

use super::{Bench, addresses, failed, has_interface, program};
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

/// Ports of IKE and of ESP in UDP.
pub(super) const PORTS: [u16; 2] = [500, 4_500];
/// Places of the daemon.
const DAEMONS: [&str; 2] = ["/usr/lib/ipsec/charon", "/usr/libexec/ipsec/charon"];
/// Plugins of the daemon with files of their own, and the Debian packages of these.
const PLUGINS: [(&str, &str); 3] = [
    ("vici", "strongswan-swanctl"),
    ("kernel-libipsec", "libcharon-extra-plugins"),
    ("openssl", "libstrongswan-standard-plugins"),
];
/// Device of the data path.
pub(super) const DEVICE: &str = "ipsec0";
/// Cipher of ESP as it is proposed, and as the daemon lists it.
const CIPHER: [&str; 2] = ["aes256gcm16", "AES_GCM_16-256"];

/// The daemon of this machine.
fn daemon() -> Result<&'static Path, String> {
    let found = DAEMONS.iter().map(Path::new).find(|path| path.exists());
    let daemon =
        found.ok_or("strongSwan's daemon charon is not installed: install strongswan-charon")?;
    for (plugin, package) in PLUGINS {
        let file = format!("plugins/libstrongswan-{plugin}.so");
        if !daemon.with_file_name(file).exists() {
            return Err(format!(
                "strongSwan's plugin {plugin} is not installed: install {package}"
            ));
        }
    }
    Ok(daemon)
}

/// A folder in the temporary directory, as the path of a Unix socket has 107 bytes at most.
fn private_folder(name: &str) -> Result<PathBuf, String> {
    let folder = std::env::temp_dir().join(format!("{name}-ike"));
    let made = DirBuilder::new().mode(0o700).create(&folder);
    made.map_err(|error| failed(&folder.display().to_string(), error))?;
    Ok(folder)
}

fn daemon_settings(socket: &Path) -> String {
    format!(
        "charon {{ load = random nonce openssl kdf socket-default kernel-libipsec kernel-netlink vici\n  \
         plugins {{ vici {{ socket = unix://{} }} \n    kernel-libipsec {{ allow_peer_ts = yes }} }}\n  \
         filelog {{ stderr {{ default = 1\n    flush_line = yes }} }} }}\n",
        socket.display()
    )
}

fn connection(side: usize, bench: &Bench, secret: &str) -> String {
    let other = 1 - side;
    let (line, inner) = (bench.line, bench.inner);
    format!(
        "connections {{ line {{ version = 2\n  local_addrs = {}\n  remote_addrs = {}\n  proposals = aes256-sha256-x25519\n  \
         local {{ auth = psk }}\n  remote {{ auth = psk }}\n  children {{ media {{ local_ts = {}/32\n    remote_ts = {}/32\n    \
         esp_proposals = {} }} }} }} }}\nsecrets {{ ike-line {{ secret = \"{secret}\" }} }}\n",
        line[side], line[other], inner[side], inner[other], CIPHER[0]
    )
}

/// Runs `swanctl` at a daemon. It warns of plugins that it does not need.
fn swanctl(socket: &Path, words: &[&str]) -> Result<String, String> {
    let uri = format!("unix://{}", socket.display());
    let done = program("swanctl", &[words, &["--uri", &uri]].concat());
    done.map_err(|error| {
        let last = error.lines().rfind(|line| !line.starts_with("plugin '"));
        failed("swanctl", last.unwrap_or(&error))
    })
}

impl Bench {
    /// Sets up the tunnel, and checks that it has the cipher.
    pub(super) fn strongswan(&mut self) -> Result<(), String> {
        let daemon = daemon()?;
        let folder = private_folder(&self.names[0])?;
        self.folders.push(folder.clone());
        let entropy = net::entropy();
        let mut entropy = entropy.map_err(|error| failed("a secret", error))?;
        let parts: [String; 4] = std::array::from_fn(|_| format!("{:016x}", entropy.u64()));
        let secret = parts.concat();
        let (mut sockets, mut logs) = (Vec::new(), Vec::new());
        for side in [0, 1] {
            program(
                "ip",
                &[
                    "-n",
                    &self.names[side],
                    "addr",
                    "add",
                    self.inner[side],
                    "dev",
                    "lo",
                ],
            )?;
            let socket = folder.join(format!("{side}.vici"));
            let settings = folder.join(format!("{side}.conf"));
            write(&settings, &daemon_settings(&socket))?;
            write(
                &folder.join(format!("{side}.swanctl")),
                &connection(side, self, &secret),
            )?;
            // Both daemons would write the same process file in /run.
            let start = format!("mount -t tmpfs tmpfs /run; exec {}", daemon.display());
            let settings = format!("STRONGSWAN_CONF={}", settings.display());
            let words = ["env", &settings, "unshare", "-m", "sh", "-ec", &start];
            logs.push(self.spawn(side, &words, "strongswan")?);
            sockets.push(socket);
        }
        let networks = self.networks.clone();
        let listening = sockets.clone();
        self.wait_for("strongSwan", &logs, move || {
            let mut hosts = networks[..2].iter();
            listening.iter().all(|socket| socket.exists())
                && hosts.all(|network| has_interface(network, DEVICE))
        })?;
        for (side, socket) in sockets.iter().enumerate() {
            let file = folder.join(format!("{side}.swanctl"));
            swanctl(
                socket,
                &["--load-all", "--file", &file.display().to_string()],
            )?;
            // It contains the secret.
            let _ = std::fs::remove_file(file);
        }
        swanctl(
            &sockets[0],
            &["--initiate", "--child", "media", "--timeout", "15"],
        )?;
        let associations = swanctl(&sockets[1], &["--list-sas"])?;
        if !associations.contains(CIPHER[1]) {
            return Err(format!("strongSwan does not use {}", CIPHER[0]));
        }
        self.media_interfaces = [DEVICE, DEVICE].map(str::to_owned);
        self.media_addresses = addresses(self.inner);
        self.reach()
    }
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    std::fs::write(path, text).map_err(|error| failed(&path.display().to_string(), error))
}
