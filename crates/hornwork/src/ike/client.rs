//! The connection to VICI: commands one after the other, events in between.

use engine::Time;
use protect::ike::{MAX_VICI_PACKET, ViciPacket, ViciSection};
use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;
use zeroize::Zeroizing;

/// Longest wait for room in the socket: the daemon reads at once.
const WRITE: Duration = Duration::from_secs(2);
/// Longest wait for a response, after which the daemon is taken for dead.
const RESPONSE: Duration = Duration::from_secs(30);
/// Bytes of a read.
const CHUNK: usize = 64 * 1024;

/// A message of the daemon.
#[derive(Debug)]
pub(super) enum ViciFact {
    /// A command was refused: its description, and the reason.
    Refused(String, String),
    /// A command was carried out.
    Done(String),
    /// An event.
    Event(String, ViciSection),
}

/// A command that waits for its turn.
struct Waiting {
    what: String,
    bytes: Zeroizing<Vec<u8>>,
}

/// A connection.
pub(super) struct ViciClient {
    stream: UnixStream,
    received: Vec<u8>,
    waiting: VecDeque<Waiting>,
    /// The command whose response is expected, and when it was sent.
    asked: Option<(String, Time)>,
}

impl ViciClient {
    pub(super) fn new(stream: UnixStream) -> io::Result<ViciClient> {
        stream.set_write_timeout(Some(WRITE))?;
        Ok(ViciClient {
            stream,
            received: Vec::new(),
            waiting: VecDeque::new(),
            asked: None,
        })
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Commands without a response.
    pub(super) fn open(&self) -> usize {
        self.waiting.len() + usize::from(self.asked.is_some())
    }

    /// Sends a command once the commands before it have their responses. `what` names it in errors.
    ///
    /// # Errors
    /// The daemon has gone, or the message is too long.
    pub(super) fn ask(&mut self, what: String, packet: &ViciPacket, now: Time) -> io::Result<()> {
        let bytes = packet.to_bytes().map_err(io::Error::other)?;
        self.waiting.push_back(Waiting { what, bytes });
        self.send_next(now)
    }

    /// The command that has had no response for [`RESPONSE`].
    pub(super) fn overdue(&self, now: Time) -> Option<&str> {
        let (what, since) = self.asked.as_ref()?;
        (now.since(*since) >= RESPONSE).then_some(what)
    }

    fn send_next(&mut self, now: Time) -> io::Result<()> {
        if self.asked.is_some() {
            return Ok(());
        }
        let Some(next) = self.waiting.pop_front() else {
            return Ok(());
        };
        self.stream.write_all(&next.bytes)?;
        self.asked = Some((next.what, now));
        Ok(())
    }

    /// Reads the messages that have arrived; it may wait unless the socket is readable.
    ///
    /// # Errors
    /// The daemon has gone, or sent something else than VICI.
    pub(super) fn read(&mut self, now: Time, mut each: impl FnMut(ViciFact)) -> io::Result<()> {
        let start = self.received.len();
        self.received.resize(start + CHUNK, 0);
        let space = self.received.get_mut(start..).unwrap_or_default();
        let length = self.stream.read(space)?;
        self.received.truncate(start + length);
        if length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut used = 0;
        while let Some((field, rest)) = self
            .received
            .get(used..)
            .and_then(<[u8]>::split_first_chunk::<4>)
        {
            let length = u32::from_be_bytes(*field) as usize;
            if length > MAX_VICI_PACKET {
                return Err(io::Error::other("VICI: a packet is too long"));
            }
            let Some(bytes) = rest.get(..length) else {
                break;
            };
            let packet = ViciPacket::parse(bytes).map_err(io::Error::other)?;
            used += 4 + length;
            match packet {
                ViciPacket::Event(name, message) => each(ViciFact::Event(name, message)),
                answer => {
                    let (what, _) = self.asked.take().unwrap_or_default();
                    each(match refusal(&answer) {
                        Some(why) => ViciFact::Refused(what, why),
                        None => ViciFact::Done(what),
                    });
                }
            }
        }
        self.received.drain(..used);
        self.send_next(now)
    }
}

/// Why an answer is a refusal.
fn refusal(answer: &ViciPacket) -> Option<String> {
    match answer {
        ViciPacket::Response(message) if message.text("success") == Some("no") => {
            let why = message.text("errmsg").unwrap_or("no reason was given");
            Some(why.to_owned())
        }
        ViciPacket::Response(_) | ViciPacket::Registered => None,
        _ => Some("the daemon does not know it".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(name: &str) -> ViciPacket {
        ViciPacket::Command(name.to_owned(), ViciSection::new())
    }

    fn receive(stream: &mut UnixStream) -> ViciPacket {
        let mut field = [0; 4];
        stream.read_exact(&mut field).unwrap();
        let mut bytes = vec![0; u32::from_be_bytes(field) as usize];
        stream.read_exact(&mut bytes).unwrap();
        ViciPacket::parse(&bytes).unwrap()
    }

    #[test]
    fn commands_take_turns_and_events_come_in_between() {
        let (here, mut daemon) = UnixStream::pair().unwrap();
        let mut client = ViciClient::new(here).unwrap();
        let now = Time::ZERO + RESPONSE;
        client
            .ask("first".into(), &command("a"), Time::ZERO)
            .unwrap();
        client
            .ask("second".into(), &command("b"), Time::ZERO)
            .unwrap();
        assert_eq!(client.overdue(Time::ZERO + Duration::from_secs(29)), None);
        assert_eq!(client.overdue(now), Some("first"));
        assert_eq!(receive(&mut daemon), command("a"));
        let event = ViciPacket::Event("child-updown".into(), ViciSection::new());
        let refused = ViciSection::new()
            .with("success", "no")
            .with("errmsg", "why");
        let mut bytes = event.to_bytes().unwrap().to_vec();
        bytes.extend_from_slice(&ViciPacket::Response(refused).to_bytes().unwrap());
        // In two parts, the second one in the middle of a packet.
        let (one, two) = bytes.split_at(20);
        let mut facts = Vec::new();
        daemon.write_all(one).unwrap();
        client.read(now, |fact| facts.push(fact)).unwrap();
        daemon.write_all(two).unwrap();
        client.read(now, |fact| facts.push(fact)).unwrap();
        assert!(
            matches!(&facts[..], [ViciFact::Event(name, _), ViciFact::Refused(what, why)]
                if name == "child-updown" && what == "first" && why == "why"),
            "{facts:?}"
        );
        assert_eq!(receive(&mut daemon), command("b"));
        assert_eq!((client.open(), client.overdue(now)), (1, None));
        let done = ViciPacket::Response(ViciSection::new().with("success", "yes"));
        daemon.write_all(&done.to_bytes().unwrap()).unwrap();
        client.read(now, |fact| facts.push(fact)).unwrap();
        assert!(matches!(facts.last(), Some(ViciFact::Done(what)) if what == "second"));
        daemon.write_all(&[0xff; 8]).unwrap();
        assert!(client.read(now, |_| {}).is_err());
        drop(daemon);
        assert!(client.read(now, |_| {}).is_err());
    }
}
