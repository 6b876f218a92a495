//! Measures the packet rate of the kernel relay between two veths, compared with an empty redirect program:
//! `relay_rate [FLOWS] [MILLISECONDS] [ROUNDS]`. One core generates packets in the kernel, the other one relays them
//! and counts them at the far end; its cost per packet is the CPU time of the kernel threads that do both.
//!
//! Needs root, clang at build time and two cores; exit code 3 if one of these is missing. Everything runs in network
//! namespaces that end with the program.

#[cfg(not(bpf_present))]
fn main() {
    eprintln!("this build has no BPF programs: clang was missing when it was built");
    std::process::exit(3);
}

#[cfg(bpf_present)]
fn main() {
    let number = |at: usize, default: u32| match std::env::args().nth(at) {
        Some(word) => word.parse().unwrap_or_else(|_| {
            eprintln!("{word}: not a number");
            std::process::exit(2);
        }),
        None => default,
    };
    let (flows, span, rounds) = (number(1, 100_000), number(2, 500), number(3, 9));
    if let Err(error) = rate::measure(flows, span, rounds) {
        eprintln!("{error}");
        std::process::exit(if error.is::<rate::Missing>() { 3 } else { 1 });
    }
}

#[cfg(bpf_present)]
mod rate {
    use aya::maps::{Array, DevMap, MapData};
    use aya::programs::Xdp;
    use aya::programs::xdp::XdpMode;
    use aya::{Ebpf, EbpfLoader};
    use net::KernelRelay;
    use std::error::Error;
    use std::net::{IpAddr, Ipv4Addr, SocketAddr};
    use std::os::fd::{AsFd as _, AsRawFd as _};
    use std::process::Command;
    use std::time::{Duration, Instant};

    /// A requirement of the measurement that this machine or its permissions do not meet.
    #[derive(Debug)]
    pub(super) struct Missing(String);

    impl std::fmt::Display for Missing {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str(&self.0)
        }
    }

    impl Error for Missing {}

    type Result<T> = std::result::Result<T, Box<dyn Error>>;

    /// Number of ports used per address.
    const PORTS: u32 = 50_000;
    const FIRST_PORT: u32 = 10_000;
    /// Frames in a call of BPF_PROG_TEST_RUN, and in one of its batches.
    const FRAMES: u32 = 1 << 18;
    const BATCH: u32 = 128;
    /// Headroom of a frame, bytes, so that it begins on a cache line as with network cards.
    const META: u32 = 16;

    fn run(program: &str, words: &str) -> Result<()> {
        let done = Command::new(program)
            .args(words.split_whitespace())
            .output()?;
        match done.status.success() {
            true => Ok(()),
            false => Err(format!(
                "{program} {words}: {}",
                String::from_utf8_lossy(&done.stderr)
            )
            .into()),
        }
    }

    fn ip(words: &str) -> Result<()> {
        run("ip", words)
    }

    /// Moves the packet processing of an interface to a kernel thread on core 1; returns its ID.
    fn thread_of(interface: &str) -> Result<String> {
        std::fs::write(format!("/sys/class/net/{interface}/threaded"), "1")?;
        for entry in std::fs::read_dir("/proc")? {
            let path = entry?.path();
            let name = std::fs::read_to_string(path.join("comm")).unwrap_or_default();
            let Some(pid) = path.file_name().and_then(|name| name.to_str()) else {
                continue;
            };
            if name.starts_with(&format!("napi/{interface}-")) {
                run("taskset", &format!("-pc 1 {pid}"))?;
                return Ok(pid.to_owned());
            }
        }
        Err(format!("no thread deals with the packets of {interface}").into())
    }

    /// CPU time of these threads, nanoseconds.
    fn spent(threads: &[String]) -> Result<u64> {
        let mut sum = 0;
        for thread in threads {
            let text = std::fs::read_to_string(format!("/proc/{thread}/schedstat"))?;
            let first = text.split_whitespace().next().unwrap_or_default();
            sum += first.parse::<u64>()?;
        }
        Ok(sum)
    }

    fn xdp<'a>(loaded: &'a mut Ebpf, name: &str) -> Result<&'a mut Xdp> {
        let program: &mut Xdp = loaded
            .program_mut(name)
            .ok_or("a program is missing")?
            .try_into()?;
        if program.fd().is_err() {
            program.load()?;
        }
        Ok(program)
    }

    fn number_of(interface: &str) -> Result<u32> {
        let text = std::fs::read_to_string(format!("/sys/class/net/{interface}/ifindex"))?;
        Ok(text.trim().parse()?)
    }

    fn card_of(interface: &str) -> Result<[u8; 6]> {
        let text = std::fs::read_to_string(format!("/sys/class/net/{interface}/address"))?;
        let mut mac = [0; 6];
        for (octet, word) in mac.iter_mut().zip(text.trim().split(':')) {
            *octet = u8::from_str_radix(word, 16)?;
        }
        Ok(mac)
    }

    fn local(number: u32) -> SocketAddr {
        let port = FIRST_PORT + number % PORTS;
        let address = Ipv4Addr::new(10, 77, 0, 10 + (number / PORTS) as u8);
        SocketAddr::new(address.into(), port as u16)
    }

    /// Layout of `struct stream`.
    fn stream(number: u32) -> [u8; 8] {
        let SocketAddr::V4(local) = local(number) else {
            return [0; 8];
        };
        let [a, b, c, d] = local.ip().octets();
        let [e, f] = local.port().to_be_bytes();
        [a, b, c, d, e, f, 0, 0]
    }

    /// A frame with an IP packet of 60 bytes, which the generator completes.
    fn frame(to: [u8; 6], from: [u8; 6]) -> Vec<u8> {
        let mut whole = vec![0u8; META as usize + 74];
        let frame = &mut whole[META as usize..];
        frame[..6].copy_from_slice(&to);
        frame[6..12].copy_from_slice(&from);
        frame[12] = 8;
        frame[14..24].copy_from_slice(&[0x45, 0, 0, 60, 0, 1, 0x40, 0, 64, 17]);
        frame[38..40].copy_from_slice(&40u16.to_be_bytes());
        frame[42] = 0x80;
        frame[43] = 18;
        whole
    }

    /// BPF_PROG_TEST_RUN with live frames (linux/bpf.h).
    fn inject(program: &Xdp, frame: &[u8], interface: u32) -> Result<()> {
        #[repr(C)]
        struct Attributes {
            program: u32,
            returned: u32,
            in_size: u32,
            out_size: u32,
            data_in: u64,
            data_out: u64,
            repeat: u32,
            duration: u32,
            context_in_size: u32,
            context_out_size: u32,
            context_in: u64,
            context_out: u64,
            flags: u32,
            cpu: u32,
            batch: u32,
            unused: u32,
        }
        const TEST_RUN: libc::c_long = 10;
        const LIVE: u32 = 2;
        // struct xdp_md: data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex
        let context = [META, frame.len() as u32, 0, interface, 0, 0];
        let mut attributes = Attributes {
            program: program.fd()?.as_fd().as_raw_fd() as u32,
            returned: 0,
            in_size: frame.len() as u32,
            out_size: 0,
            data_in: frame.as_ptr() as u64,
            data_out: 0,
            repeat: FRAMES,
            duration: 0,
            context_in_size: size_of_val(&context) as u32,
            context_out_size: 0,
            context_in: context.as_ptr() as u64,
            context_out: 0,
            flags: LIVE,
            cpu: 0,
            batch: BATCH,
            unused: 0,
        };
        // SAFETY: attributes of the stated size, with pointers to memory that outlives the call.
        let done = unsafe {
            libc::syscall(
                libc::SYS_bpf,
                TEST_RUN,
                &raw mut attributes,
                size_of::<Attributes>(),
            )
        };
        match done {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error().into()),
        }
    }

    /// Result of one program in one time slice.
    struct Slice {
        /// Packets per second at the far end.
        passed: f64,
        /// Packets lost.
        lost: u64,
        /// CPU time per packet, nanoseconds.
        cost: f64,
    }

    struct Lane {
        /// Generator, empty redirect and sink.
        loaded: Ebpf,
        counters: Array<MapData, [u64; 8]>,
        sources: Array<MapData, [u8; 8]>,
        flows: u32,
        frame: Vec<u8>,
        from: u32,
        own: u32,
    }

    impl Lane {
        /// Generates packets for a time and counts them. `threads`: those that relay and count.
        fn count(&mut self, span: Duration, threads: &[String]) -> Result<Slice> {
            let read = |lane: &Lane| -> Result<[u64; 3]> {
                let sent = lane.counters.get(&0, 0)?[0];
                Ok([lane.counters.get(&1, 0)?[0], sent, spent(threads)?])
            };
            let begun = Instant::now();
            let mut started = None;
            loop {
                let program = xdp(&mut self.loaded, "generate")?;
                inject(program, &self.frame, self.from)?;
                match &started {
                    // The first fifth is warm-up.
                    None if begun.elapsed() > span / 5 => {
                        started = Some((read(self)?, Instant::now()));
                    }
                    Some((before, started)) if started.elapsed() > span => {
                        let (now, seconds) = (read(self)?, started.elapsed().as_secs_f64());
                        let [passed, sent, spent] = [0, 1, 2].map(|at| now[at] - before[at]);
                        return Ok(Slice {
                            passed: passed as f64 / seconds,
                            lost: sent.saturating_sub(passed),
                            cost: spent as f64 / passed as f64,
                        });
                    }
                    _ => {}
                }
            }
        }
    }

    pub(super) fn measure(flows: u32, span: u32, rounds: u32) -> Result<()> {
        // SAFETY: changes only the namespaces of this thread and its children.
        if unsafe { libc::unshare(libc::CLONE_NEWNET | libc::CLONE_NEWNS) } != 0 {
            let error = std::io::Error::last_os_error();
            return Err(Missing(format!("no namespace of our own: {error}")).into());
        }
        if std::thread::available_parallelism()?.get() < 2 {
            return Err(
                Missing("one core makes packets, another one relays: there is one".into()).into(),
            );
        }
        // sysfs shows the interfaces of the namespace in which it was mounted.
        run("mount", "--make-rprivate /")?;
        run("mount", "-t sysfs sysfs /sys")?;
        net::pin(0)?;
        // Only our own packets may be counted at the far end.
        std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1")?;
        ip("link set lo up")?;
        for (ours, far) in [("in0", "in1"), ("out0", "out1")] {
            ip(&format!("link add {ours} type veth peer name {far}"))?;
            for name in [ours, far] {
                ip(&format!("link set {name} up"))?;
            }
        }
        let addresses: Vec<IpAddr> = (0..flows.div_ceil(PORTS))
            .map(|number| local(number * PORTS).ip())
            .collect();
        for address in &addresses {
            ip(&format!("addr add {address}/24 dev in0"))?;
        }
        ip("addr add 10.78.0.1/24 dev out0")?;
        let mac = |mac: [u8; 6]| mac.map(|octet| format!("{octet:02x}")).join(":");
        let next = mac(card_of("out1")?);
        ip(&format!(
            "neigh add 10.78.0.2 lladdr {next} dev out0 nud permanent"
        ))?;

        let own = card_of("in0")?;
        let code = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/measure.o"));
        let mut loaded = EbpfLoader::new()
            .map_max_entries("sources", flows)
            .override_global("streams", &flows, true)
            .override_global("card", &own[..], true)
            .load(code)?;
        let map = |loaded: &mut Ebpf, name: &str| loaded.take_map(name).ok_or("a map is missing");
        let counters = Array::try_from(map(&mut loaded, "counters")?)?;
        let sources = Array::try_from(map(&mut loaded, "sources")?)?;
        let mut ports: DevMap<MapData> = DevMap::try_from(map(&mut loaded, "ports")?)?;
        ports.set(0, number_of("in1")?, None, 0)?;
        ports.set(1, number_of("out0")?, None, 0)?;
        xdp(&mut loaded, "sink")?.attach_to_if_index(number_of("out1")?, XdpMode::Driver)?;
        xdp(&mut loaded, "generate")?;
        // The near end of the wire must accept frames, although it receives none.
        let quiet =
            xdp(&mut loaded, "sink")?.attach_to_if_index(number_of("in1")?, XdpMode::Driver)?;
        let mut lane = Lane {
            counters,
            sources,
            flows,
            frame: frame(card_of("in0")?, card_of("in1")?),
            from: number_of("in1")?,
            own: number_of("in0")?,
            loaded,
        };
        let _held = quiet;
        let span = Duration::from_millis(span.into());
        let (mut rates, mut costs) = (Vec::new(), Vec::new());
        for round in 0..rounds {
            let empty = lane.empty(span)?;
            let ours = lane.ours(&addresses, span)?;
            let (rate, cost) = (ours.passed / empty.passed, empty.cost / ours.cost);
            println!(
                "round {round} flows {flows} empty {:.0}/s {:.0} ns relay {:.0}/s {:.0} ns lost {} passed {rate:.3} capacity {cost:.3}",
                empty.passed, empty.cost, ours.passed, ours.cost, ours.lost
            );
            rates.push(rate);
            costs.push(cost);
        }
        println!("passed {:.3} capacity {:.3}", median(rates), median(costs));
        Ok(())
    }

    fn median(mut values: Vec<f64>) -> f64 {
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
    }

    impl Lane {
        fn restart(&mut self) -> Result<()> {
            for number in 0..self.flows {
                self.sources.set(number, stream(number), 0)?;
            }
            self.counters.set(0, [0; 8], 0)?;
            self.counters.set(1, [0; 8], 0)?;
            Ok(())
        }

        fn empty(&mut self, span: Duration) -> Result<Slice> {
            self.restart()?;
            let program = xdp(&mut self.loaded, "through")?;
            let link = program.attach_to_if_index(self.own, XdpMode::Driver)?;
            let threads = [thread_of("in0")?, thread_of("out1")?];
            let counted = self.count(span, &threads);
            xdp(&mut self.loaded, "through")?.detach(link)?;
            counted
        }

        fn ours(&mut self, addresses: &[IpAddr], span: Duration) -> Result<Slice> {
            self.restart()?;
            let out = IpAddr::V4(Ipv4Addr::new(10, 78, 0, 1));
            let served: Vec<IpAddr> = addresses.iter().copied().chain([out]).collect();
            let relay = KernelRelay::start(&served, 46)
                .map_err(|error| Missing(format!("no relay in the kernel: {error}")))?;
            let begun = Instant::now();
            for number in 0..self.flows {
                let local = local(number);
                let port = local.port();
                let source = SocketAddr::from(([10, 77, 0, 2], port));
                let destination = SocketAddr::from(([10, 78, 0, 2], port));
                let ends = [local, source, SocketAddr::new(out, port), destination];
                while !relay.open_for_measurement(ends, number) {
                    if begun.elapsed() > Duration::from_secs(10) {
                        return Err("no way to the far end".into());
                    }
                    std::thread::sleep(Duration::from_millis(10));
                }
            }
            let threads = [thread_of("in0")?, thread_of("out1")?];
            self.count(span, &threads)
        }
    }
}
