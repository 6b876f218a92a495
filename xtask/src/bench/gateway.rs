//! CPU per packet through the IPsec gateway beside strongSwan's data path in user space (kernel-libipsec) and OpenVPN:
//! all with AES-128-GCM in UDP, manual keys or keys that do not change. Two networks with a link have an end of the
//! tunnel each; UDP packets pass from the first to the second, so that one end seals and the other one opens. Each end
//! has one core; load and opening end share theirs.

use super::relay::{Network, figure};
use super::{Bench, Bound, LOAD_CORE, SUBJECT_CORE, median};
use crate::process::{Running, installed, program};
use crate::tunnel_load::MARK;
use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Packets per second.
const RATES: [u32; 2] = [5_000, 20_000];
/// UDP payloads: that of an inner packet of 60 bytes, and RTP with 20 ms of G.711.
const PAYLOADS: [(usize, &str); 2] = [(32, "60 bytes"), (172, "G.711")];
const SECONDS: u32 = 5;
/// CPU per packet, in that of kernel-libipsec.
const BAR: f64 = 0.5;
/// Percent of lost packets that are the machine's: the receiver shares a core with the load.
const LOSS: f64 = 0.1;
/// Longest set-up of a tunnel.
const START: Duration = Duration::from_secs(15);

const ENDS: [&str; 2] = ["near", "far"];
const OUTER: [&str; 2] = ["192.0.2.1", "192.0.2.2"];
const INNER: [&str; 2] = ["10.1.0.1", "10.2.0.1"];
const NETWORKS: [&str; 2] = ["10.1.0.0/24", "10.2.0.0/24"];
/// Port of the load.
const PORT: u16 = 4_000;

const CHARON: &str = "/usr/lib/ipsec/charon";

/// Makes a tunnel.
#[derive(Clone)]
enum TunnelProduct {
    Gateway(PathBuf),
    StrongSwan,
    OpenVpn,
}

/// Figures of a load: microseconds of CPU for a packet at each end, delay in microseconds, loss in percent.
struct TunnelFigures {
    seal: f64,
    open: f64,
    p50: f64,
    p99: f64,
    lost: f64,
}

/// Measures all products in turn; each tunnel carries all loads.
pub(super) fn gateway(bench: &mut Bench) -> Result<(), String> {
    ready()?;
    let mut products = vec![
        ("kernel-libipsec", TunnelProduct::StrongSwan),
        ("gateway", TunnelProduct::Gateway(program())),
        ("OpenVPN", TunnelProduct::OpenVpn),
    ];
    if let Some(program) = bench.optimised() {
        products.push(("gateway, optimised", TunnelProduct::Gateway(program)));
    }
    println!("packets through a tunnel with AES-128-GCM in UDP, {SECONDS} s a load, us");
    let loads: Vec<(usize, u32, String)> = PAYLOADS
        .iter()
        .flat_map(|(bytes, name)| RATES.map(|rate| (*bytes, rate, format!("{name}, {rate}/s"))))
        .collect();
    // Per load, per product, per round.
    let mut figures: Vec<Vec<Vec<TunnelFigures>>> = loads
        .iter()
        .map(|_| products.iter().map(|_| Vec::new()).collect())
        .collect();
    for round in 0..bench.rounds {
        for turn in 0..products.len() {
            // The order rotates, so that none is always behind the same one.
            let which = (round + turn) % products.len();
            let (name, product) = &products[which];
            let Some(tunnel) = TunnelUnderTest::new(product, &bench.scratch)? else {
                println!("skipped: no right to network namespaces");
                return Ok(());
            };
            for (at, (bytes, rate, load)) in loads.iter().enumerate() {
                let measured = tunnel
                    .load(*bytes, *rate, &bench.scratch)
                    .map_err(|why| format!("{name}, {load}: {why}"))?;
                println!("  {name:<20} {load:<18} {measured}");
                figures[at][which].push(measured);
            }
        }
    }
    for ((_, _, load), figures) in loads.iter().zip(&figures) {
        let peer = medians(&figures[0]);
        for ((name, product), ours) in products.iter().zip(figures).skip(1) {
            let ours = medians(ours);
            match product {
                TunnelProduct::Gateway(_) => judge(bench, &format!("{name}, {load}"), &ours, &peer),
                _ => println!("{name}, {load}, medians: {ours}"),
            }
        }
        println!("kernel-libipsec, {load}, medians: {peer}");
    }
    Ok(())
}

/// The bars of the gateway beside kernel-libipsec.
fn judge(bench: &mut Bench, what: &str, ours: &TunnelFigures, peer: &TunnelFigures) {
    for (direction, ours, peer) in [
        ("sealing", ours.seal, peer.seal),
        ("opening", ours.open, peer.open),
    ] {
        bench.bar(
            &format!(
                "{what}: CPU of {direction}, in kernel-libipsec's ({ours:.2} and {peer:.2} us)"
            ),
            ours / peer,
            Bound::AtMost(BAR),
        );
    }
    for (quantile, ours, peer) in [("median", ours.p50, peer.p50), ("p99", ours.p99, peer.p99)] {
        bench.bar(
            &format!("{what}: {quantile} delay in us, at most kernel-libipsec's"),
            ours,
            Bound::AtMost(peer),
        );
    }
    bench.bar(
        &format!("{what}: lost packets in percent, at most kernel-libipsec's or {LOSS}"),
        ours.lost,
        Bound::AtMost((peer.lost.max(LOSS) * 100.0).ceil() / 100.0),
    );
}

fn medians(loads: &[TunnelFigures]) -> TunnelFigures {
    let of = |value: fn(&TunnelFigures) -> f64| median(loads.iter().map(value).collect());
    TunnelFigures {
        seal: of(|load| load.seal),
        open: of(|load| load.open),
        p50: of(|load| load.p50),
        p99: of(|load| load.p99),
        lost: of(|load| load.lost),
    }
}

impl std::fmt::Display for TunnelFigures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "seal {:6.2} open {:6.2} delay p50 {:7.1} p99 {:8.1} lost {:.2} %",
            self.seal, self.open, self.p50, self.p99, self.lost
        )
    }
}

fn ready() -> Result<(), String> {
    let mut missing: Vec<&str> = [
        "ip", "nsenter", "unshare", "ping", "swanctl", "openvpn", "openssl",
    ]
    .into_iter()
    .filter(|program| !installed(program))
    .collect();
    let plugin = Path::new(CHARON).with_file_name("plugins/libstrongswan-kernel-libipsec.so");
    if !Path::new(CHARON).exists() || !plugin.exists() {
        missing.push("strongSwan with kernel-libipsec");
    }
    match missing.is_empty() {
        true => Ok(()),
        false => Err(format!(
            "missing: {} (Debian: iproute2 util-linux iputils-ping strongswan-swanctl strongswan-charon libcharon-extra-plugins libstrongswan-standard-plugins openvpn openssl)",
            missing.join(", ")
        )),
    }
}

/// The two ends of a tunnel; they end before their networks go.
struct TunnelUnderTest {
    ends: [Running; 2],
    networks: [Network; 2],
}

impl TunnelUnderTest {
    /// Starts both ends and awaits the first packet through them. `None` without the right to network namespaces.
    fn new(product: &TunnelProduct, scratch: &Path) -> Result<Option<TunnelUnderTest>, String> {
        let networks = [Network::new()?, Network::new()?];
        let [Some(near), Some(far)] = [networks[0].name(), networks[1].name()] else {
            return Ok(None);
        };
        quiet(&format!(
            "ip link add va netns {near} type veth peer name vb netns {far}
             ip -n {near} addr add {}/24 dev va; ip -n {far} addr add {}/24 dev vb
             ip -n {near} link set va up; ip -n {far} link set vb up",
            OUTER[0], OUTER[1]
        ))?;
        let ends = match product {
            TunnelProduct::Gateway(program) => gateways(program, &networks, scratch)?,
            TunnelProduct::StrongSwan => strongswans(&networks, scratch)?,
            TunnelProduct::OpenVpn => openvpns(&networks, scratch)?,
        };
        let reach = format!(
            "ip netns exec {near} ping -q -c 1 -W 1 -I {} {}",
            INNER[0], INNER[1]
        );
        let end = Instant::now() + START;
        while let Err(why) = quiet(&reach) {
            if Instant::now() > end {
                return Err(format!("no packet passes the tunnel: {why}"));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(Some(TunnelUnderTest { ends, networks }))
    }

    fn load(&self, bytes: usize, rate: u32, scratch: &Path) -> Result<TunnelFigures, String> {
        debug_assert!(bytes >= MARK);
        let own = std::env::current_exe().map_err(|error| error.to_string())?;
        let own = own.display().to_string();
        let words = |text: &str| -> Vec<String> {
            let mut words = vec![own.clone(), "tunnel-load".to_owned()];
            words.extend(text.split(' ').map(str::to_owned));
            words
        };
        let [sent, received] = ["sent", "received"].map(|end| scratch.join(format!("load-{end}")));
        let to = format!("{}:{PORT}", INNER[1]);
        let count = rate * SECONDS;
        let mut receiver = self.networks[1].start(
            LOAD_CORE,
            &words(&format!("receive {to} {count}")),
            &received,
        )?;
        await_line(&received, "ready")?;
        let before = self.ends.each_ref().map(Running::cpu_nanos);
        let line = format!("send {}:0 {to} {rate} {bytes} {SECONDS}", INNER[0]);
        let mut sender = self.networks[0].start(LOAD_CORE, &words(&line), &sent)?;
        let limit = Duration::from_secs(u64::from(SECONDS) * 3 + 5);
        for (running, log) in [(&mut sender, &sent), (&mut receiver, &received)] {
            if !running.wait(limit)? {
                return Err(read(log));
            }
        }
        let after = self.ends.each_ref().map(Running::cpu_nanos);
        let line = read(&received);
        let of = |name| figure(&line, name).ok_or(format!("no {name} in: {line}"));
        let passed = of("received")?;
        if passed < 1.0 {
            return Err("no packet passed the tunnel".to_owned());
        }
        let micros = |end: usize| after[end].saturating_sub(before[end]) as f64 / 1e3;
        Ok(TunnelFigures {
            seal: micros(0) / f64::from(count),
            open: micros(1) / passed,
            p50: of("p50")?,
            p99: of("p99")?,
            lost: of("lost")? / f64::from(count) * 100.0,
        })
    }
}

/// Two gateways of this program, with manual keys.
fn gateways(
    program: &Path,
    networks: &[Network; 2],
    scratch: &Path,
) -> Result<[Running; 2], String> {
    own_addresses(networks)?;
    let keys = scratch.join("gateway.keys");
    let mut lines = String::new();
    for (from, to, spi) in [(0, 1, 0x1001), (1, 0, 0x1002)] {
        let mut key = "0x".to_owned();
        for at in 0..20 {
            // Writing into a String cannot fail.
            let _ = write!(key, "{:02x}", (at * 7 + spi) & 0xff);
        }
        let _ = writeln!(
            lines,
            "\"IPv4\",\"{}\",\"{}\",\"0x{spi:08x}\",\"AES-GCM with 16 octet ICV [RFC4106]\",\"{key}\",\"NULL\",\"\"",
            OUTER[from], OUTER[to]
        );
    }
    let start = |end: usize| -> Result<(Running, PathBuf), String> {
        let other = 1 - end;
        // Each end has its own file of used sequence numbers, beside its keys.
        let keys = keys.with_extension(ENDS[end]);
        write(&keys, &lines)?;
        let text = format!(
            "[gateway]\ndevice = \"esp0\"\nlocal = \"{}\"\nroute_source = \"{}\"\nkey_file = \"{}\"\n\n\
             [[gateway.tunnel]]\nname = \"{}\"\npeer = \"{}\"\nlocal_networks = \"{}\"\nremote_networks = \"{}\"\n",
            OUTER[end],
            INNER[end],
            keys.display(),
            ENDS[other],
            OUTER[other],
            NETWORKS[end],
            NETWORKS[other]
        );
        let file = scratch.join(format!("gateway-{}.toml", ENDS[end]));
        write(&file, &text)?;
        let (program, file) = (program.display().to_string(), file.display().to_string());
        let words: [&str; 6] = [&program, "run", "--role", "gateway", "-c", &file];
        start_end(networks, end, &words, scratch)
    };
    let ends = [start(0)?, start(1)?];
    for (_, log) in &ends {
        await_line(log, "gateway_started")?;
    }
    Ok(ends.map(|(running, _)| running))
}

/// Two stock strongSwans with their own data path.
fn strongswans(networks: &[Network; 2], scratch: &Path) -> Result<[Running; 2], String> {
    own_addresses(networks)?;
    let socket = |end: usize| scratch.join(format!("{}.vici", ENDS[end]));
    let swanctl = |end: usize, words: &str| {
        quiet(&format!(
            "swanctl {words} --uri unix://{}",
            socket(end).display()
        ))
    };
    let start = |end: usize| -> Result<Running, String> {
        let other = 1 - end;
        // The socket of an earlier round.
        let _ = std::fs::remove_file(socket(end));
        let settings = scratch.join(format!("charon-{}.conf", ENDS[end]));
        write(
            &settings,
            &format!(
                "charon {{\n  load = random nonce openssl kdf pem pkcs1 socket-default kernel-libipsec kernel-netlink vici\n  \
                 plugins {{ vici {{ socket = unix://{} }}\n    kernel-libipsec {{ allow_peer_ts = yes }} }}\n  \
                 filelog {{ stderr {{ default = 1\n    flush_line = yes }} }}\n}}\n",
                socket(end).display()
            ),
        )?;
        let connections = scratch.join(format!("charon-{}.swanctl", ENDS[end]));
        write(
            &connections,
            &format!(
                "connections {{ t {{ version = 2\n  local_addrs = {}\n  remote_addrs = {}\n  proposals = aes128-sha256-x25519\n  \
                 rekey_time = 0\n  encap = yes\n  local {{ auth = psk }}\n  remote {{ auth = psk }}\n  \
                 children {{ net {{ local_ts = {}\n    remote_ts = {}\n    esp_proposals = aes128gcm16\n    rekey_time = 0 }} }} }} }}\n\
                 secrets {{ ike-t {{ secret = \"of-a-benchmark-only\" }} }}\n",
                OUTER[end], OUTER[other], NETWORKS[end], NETWORKS[other]
            ),
        )?;
        // Both daemons would write the same process file in /run.
        let (named, inside) = (
            format!("STRONGSWAN_CONF={}", settings.display()),
            format!("mount -t tmpfs tmpfs /run; exec {CHARON}"),
        );
        let words = ["env", &named, "unshare", "-m", "sh", "-ec", &inside];
        let (running, log) = start_end(networks, end, &words, scratch)?;
        let limit = Instant::now() + START;
        while !socket(end).exists() {
            if Instant::now() > limit {
                return Err(format!("strongSwan did not start: {}", read(&log)));
            }
            std::thread::sleep(Duration::from_millis(30));
        }
        swanctl(end, &format!("--load-all --file {}", connections.display()))?;
        Ok(running)
    };
    let ends = [start(0)?, start(1)?];
    swanctl(0, "--initiate --child net --timeout 15")?;
    let used = swanctl(1, "--list-sas")?;
    match used.contains("AES_GCM_16-128") {
        true => Ok(ends),
        false => Err(format!("strongSwan does not use AES-128-GCM: {used}")),
    }
}

/// Two OpenVPNs, whose certificates know each other by their fingerprints.
fn openvpns(networks: &[Network; 2], scratch: &Path) -> Result<[Running; 2], String> {
    let file = |end: usize, kind: &str| {
        let name = format!("openvpn-{}.{kind}", ENDS[end]);
        scratch.join(name).display().to_string()
    };
    let mut fingerprints = Vec::new();
    for end in [0, 1] {
        quiet(&format!(
            "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout {} -out {} -subj /CN={} -days 30",
            file(end, "key"),
            file(end, "pem"),
            ENDS[end]
        ))?;
        let line = quiet(&format!(
            "openssl x509 -fingerprint -sha256 -noout -in {}",
            file(end, "pem")
        ))?;
        let (_, fingerprint) = line
            .trim()
            .rsplit_once('=')
            .ok_or("openssl: no fingerprint")?;
        fingerprints.push(fingerprint.to_owned());
    }
    let start = |end: usize| -> Result<(Running, PathBuf), String> {
        let other = 1 - end;
        let role = ["--tls-server --dh none", "--tls-client"][end];
        // Without the module of the kernel: compared are programs.
        let line = format!(
            "openvpn --dev tun0 --dev-type tun --proto udp --port 1194 --disable-dco --data-ciphers AES-128-GCM \
             --data-ciphers-fallback AES-128-GCM --reneg-sec 0 --verb 3 --local {} --remote {} --ifconfig {} {} {role} \
             --cert {} --key {} --peer-fingerprint {}",
            OUTER[end],
            OUTER[other],
            INNER[end],
            INNER[other],
            file(end, "pem"),
            file(end, "key"),
            fingerprints[other]
        );
        let words: Vec<&str> = line.split_whitespace().collect();
        start_end(networks, end, &words, scratch)
    };
    let ends = [start(0)?, start(1)?];
    for (_, log) in &ends {
        await_line(log, "Initialization Sequence Completed")?;
        await_line(log, "Data Channel: cipher 'AES-128-GCM'")?;
    }
    Ok(ends.map(|(running, _)| running))
}

/// Starts an end of a tunnel on its core; gives its log.
fn start_end(
    networks: &[Network; 2],
    end: usize,
    words: &[&str],
    scratch: &Path,
) -> Result<(Running, PathBuf), String> {
    let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    let log = scratch.join(format!("tunnel-{}.log", ENDS[end]));
    let core = [SUBJECT_CORE, LOAD_CORE][end];
    Ok((networks[end].start(core, &words, &log)?, log))
}

/// The inner addresses, for programs whose device has none.
fn own_addresses(networks: &[Network; 2]) -> Result<(), String> {
    for (network, address) in networks.iter().zip(INNER) {
        let name = network.name().ok_or("no network")?;
        quiet(&format!("ip -n {name} addr add {address}/24 dev lo"))?;
    }
    Ok(())
}

/// Runs lines of a shell to the first failure; gives their output.
fn quiet(script: &str) -> Result<String, String> {
    let done = Command::new("sh")
        .args(["-ec", script])
        .output()
        .map_err(|error| format!("sh: {error}"))?;
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    match done.status.success() {
        true => Ok(said),
        false => Err(format!(
            "{script}: {said}{}",
            String::from_utf8_lossy(&done.stderr).trim()
        )),
    }
}

fn await_line(log: &Path, text: &str) -> Result<(), String> {
    let end = Instant::now() + START;
    loop {
        let said = read(log);
        if said.contains(text) {
            return Ok(());
        }
        if Instant::now() > end {
            return Err(format!("no \"{text}\" in {}: {said}", log.display()));
        }
        std::thread::sleep(Duration::from_millis(30));
    }
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// Writes a file for its owner only, as it may hold a key.
fn write(path: &Path, text: &str) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    std::fs::write(path, text).map_err(failed)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(failed)
}
