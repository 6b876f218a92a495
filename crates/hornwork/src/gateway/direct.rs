//! The thread of the packet loop: one of its own, or that of media, which then drives it between its other work, so
//! that media passes between tunnels and forwarder without TUN device and sockets. One thread at a time drives it,
//! because sequence numbers and replay windows are not shared.

use super::packets::{CarryingEnd, PacketLoop};
use config::{Config, GatewayMedia, GatewaySpec};
use engine::Time;
use engine::worker::lock;
use net::{EspSocket, TunnelPath};
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// Why media does not take the direct path; `None` if the configuration allows it. The place of ESP is decided at the
/// start.
pub(super) fn needs_kernel(config: &Config, spec: &GatewaySpec) -> Option<&'static str> {
    match spec.media {
        GatewayMedia::Kernel => Some("media = \"kernel\""),
        GatewayMedia::Direct if config.sip.workers > 1 => Some("[sip] workers"),
        GatewayMedia::Direct if config.media.at_nodes => Some("media is at media nodes"),
        GatewayMedia::Direct => None,
    }
}

/// The packet loop, where it runs.
enum LoopThread {
    /// The thread of media drives it.
    Media(Box<PacketLoop>),
    /// A thread of its own.
    Thread(JoinHandle<CarryingEnd>),
    Ended(CarryingEnd),
    Joined,
}

/// The running packet loop.
#[derive(Clone)]
pub(super) struct Carrying(Arc<Mutex<LoopThread>>);

impl std::fmt::Debug for Carrying {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let place = match &*lock(&self.0) {
            LoopThread::Media(_) => "media thread",
            LoopThread::Thread(_) => "own thread",
            LoopThread::Ended(_) | LoopThread::Joined => "ended",
        };
        f.debug_tuple("Carrying").field(&place).finish()
    }
}

fn spawn(packets: PacketLoop) -> io::Result<JoinHandle<CarryingEnd>> {
    std::thread::Builder::new()
        .name("gateway".to_owned())
        .spawn(move || packets.run())
}

impl Carrying {
    /// Starts a thread for it.
    ///
    /// # Errors
    /// The system gives no thread.
    pub(super) fn on_own_thread(packets: PacketLoop) -> io::Result<Carrying> {
        let thread = spawn(packets)?;
        Ok(Carrying(Arc::new(Mutex::new(LoopThread::Thread(thread)))))
    }

    /// Leaves it to the thread of media.
    pub(super) fn on_media_thread(packets: PacketLoop) -> Carrying {
        let place = LoopThread::Media(Box::new(packets));
        Carrying(Arc::new(Mutex::new(place)))
    }

    /// A turn of the loop while the thread of media waits for the key exchange at the start, which may wait for this
    /// loop. No effect on a loop with a thread of its own.
    pub(super) fn turn(&self, now: Time) {
        self.drive((), |packets| {
            packets.seal_from_device(false, now)?;
            packets.open_batch(EspSocket::BATCH, now, &mut |_| false)?;
            go_on(packets.execute(now) || packets.tick_if_due(now))
        });
    }

    /// The path for the thread of media.
    pub(super) fn path(&self) -> Box<dyn TunnelPath> {
        Box::new(MediaThreadPath(self.clone()))
    }

    /// Gives it a thread of its own, if it has none: from now on nothing waits for the thread of media. Both directions
    /// go on through the TUN device.
    pub(super) fn detach(&self) {
        let mut place = lock(&self.0);
        *place = match std::mem::replace(&mut *place, LoopThread::Joined) {
            LoopThread::Media(packets) => match spawn(*packets) {
                Ok(thread) => LoopThread::Thread(thread),
                // Its unused sequence numbers are lost, which is safe.
                Err(error) => LoopThread::Ended(CarryingEnd {
                    states: Vec::new(),
                    result: Err(error),
                }),
            },
            other => other,
        };
    }

    /// Waits for its end, on a thread of its own.
    pub(super) fn join(&self) -> CarryingEnd {
        self.detach();
        let place = std::mem::replace(&mut *lock(&self.0), LoopThread::Joined);
        let failed = |reason: &str| CarryingEnd {
            states: Vec::new(),
            result: Err(io::Error::other(reason.to_owned())),
        };
        match place {
            LoopThread::Thread(thread) => thread
                .join()
                .unwrap_or_else(|_| failed("the packet thread has panicked")),
            LoopThread::Ended(end) => end,
            LoopThread::Media(_) | LoopThread::Joined => {
                failed("the packet thread was not started")
            }
        }
    }

    /// Has the thread of media do work, which may be the end of the loop; `other` if it does not drive it any more.
    fn drive<T>(&self, other: T, work: impl FnOnce(&mut PacketLoop) -> Result<T, LoopEnd>) -> T
    where
        T: Copy,
    {
        let mut place = lock(&self.0);
        let LoopThread::Media(packets) = &mut *place else {
            return other;
        };
        let LoopEnd(result) = match work(packets) {
            Ok(value) => return value,
            Err(end) => end,
        };
        if let LoopThread::Media(packets) = std::mem::replace(&mut *place, LoopThread::Joined) {
            *place = LoopThread::Ended(packets.end(result));
        }
        other
    }
}

/// The end of the loop: by command, or by an error.
struct LoopEnd(io::Result<()>);

impl From<io::Error> for LoopEnd {
    fn from(error: io::Error) -> LoopEnd {
        LoopEnd(Err(error))
    }
}

fn go_on(ends: bool) -> Result<(), LoopEnd> {
    match ends {
        true => Err(LoopEnd(Ok(()))),
        false => Ok(()),
    }
}

/// The loop as the thread of media has it.
struct MediaThreadPath(Carrying);

impl TunnelPath for MediaThreadPath {
    fn descriptors(&self) -> io::Result<[OwnedFd; 3]> {
        match &*lock(&self.0.0) {
            LoopThread::Media(packets) => packets.descriptors(),
            _ => Err(io::Error::other("the packet loop has a thread of its own")),
        }
    }

    fn send_from_device(&mut self, failed: bool, now: Time) -> usize {
        self.0.drive(0, |packets| {
            packets.count_turn();
            Ok(packets.seal_from_device(failed, now)?)
        })
    }

    fn receive(&mut self, most: usize, now: Time, take: &mut dyn FnMut(&[u8]) -> bool) -> usize {
        self.0.drive(0, |packets| {
            packets.count_turn();
            Ok(packets.open_batch(most, now, take)?)
        })
    }

    fn execute(&mut self, now: Time) {
        self.0.drive((), |packets| go_on(packets.execute(now)));
    }

    fn tick(&mut self, now: Time) {
        self.0.drive((), |packets| go_on(packets.tick_if_due(now)));
    }

    fn next_tick(&self) -> Time {
        match &*lock(&self.0.0) {
            LoopThread::Media(packets) => packets.next_tick(),
            // At once: it has ended.
            _ => Time::ZERO,
        }
    }

    fn send(
        &mut self,
        ends: (IpAddr, IpAddr),
        now: Time,
        write: &mut dyn FnMut(&mut [u8]) -> Option<usize>,
    ) -> bool {
        self.0
            .drive(false, |packets| Ok(packets.seal_media(ends, now, write)))
    }

    fn flush(&mut self, now: Time) {
        self.0.drive((), |packets| {
            packets.flush_media(now);
            Ok(())
        });
    }

    fn has_ended(&self) -> bool {
        !matches!(&*lock(&self.0.0), LoopThread::Media(_))
    }
}

#[cfg(test)]
mod tests {
    use crate::gateway::{carries_media_directly, media_through_kernel, summary};

    #[test]
    fn the_configuration_decides_on_the_path_of_media() {
        const GATEWAY: &str = "local=\"192.0.2.1\"\nkey_file=\"/k\"\n[[gateway.tunnel]]\nname=\"b\"\npeer=\"192.0.2.2\"\nlocal_networks=\"10.1.0.0/24\"\nremote_networks=\"10.2.0.0/24\"\n";
        const BORDER: &str = "[[interface]]\nname=\"a\"\nlisten=\"udp:10.1.0.1:5060\"\n";
        for (head, media, reason) in [
            ("", "", None),
            ("", "media=\"direct\"\n", None),
            ("", "media=\"kernel\"\n", Some("media = \"kernel\"")),
            ("[sip]\nworkers=2\n", "", Some("[sip] workers")),
        ] {
            let text = format!("{head}{BORDER}[gateway]\n{media}{GATEWAY}");
            let config = config::parse(&text, "f").expect("configuration");
            let found = media_through_kernel(&config);
            assert_eq!(found.as_deref(), reason, "{text}");
            let text = summary(&config);
            let line = match reason {
                None => "media of calls: direct\n".to_owned(),
                Some(reason) => format!("media of calls: through the kernel ({reason})\n"),
            };
            assert!(text.contains(&line), "{text}");
            let direct = carries_media_directly(&config);
            assert_eq!(direct, reason.is_none());
        }
        // A gateway alone has no calls.
        let config = config::parse(&format!("[gateway]\n{GATEWAY}"), "f").expect("configuration");
        assert!(!summary(&config).contains("media of calls"));
    }
}
