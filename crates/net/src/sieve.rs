//! An [`engine::Sieve`] as a program of the kernel's packet filter (classic BPF): what it drops costs the thread that reads the
//! socket nothing.

use engine::{Prefix, Sieve};
use libc::{sock_filter, sock_fprog};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// A socket's filter sees a datagram from its UDP header on.
const HEADER: u32 = 8;
const PASS: u32 = u32::MAX;
const DROP: u32 = 0;

// Codes of linux/bpf_common.h, put together.
const LOAD_WORD: u16 = 0x20;
const LOAD_HALF: u16 = 0x28;
const LOAD_BYTE: u16 = 0x30;
const LOAD_LENGTH: u16 = 0x80;
const LOAD_NUMBER: u16 = 0x00;
const XOR_X: u16 = 0xac;
const MULTIPLY: u16 = 0x24;
const SHIFT_RIGHT: u16 = 0x74;
const TO_X: u16 = 0x07;
const STORE: u16 = 0x02;
const LOAD_STORED_X: u16 = 0x61;
const IF_EQUAL: u16 = 0x15;
const IF_AT_LEAST: u16 = 0x35;
const JUMP: u16 = 0x05;
const RETURN: u16 = 0x06;

fn line(code: u16, k: u32) -> sock_filter {
    sock_filter {
        code,
        jt: 0,
        jf: 0,
        k,
    }
}

fn branch(code: u16, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

/// The program of a sieve.
fn program(sieve: &Sieve) -> Vec<sock_filter> {
    let mut lines = Vec::with_capacity(512);
    // What is too short comes through; from here on every load is inside the datagram.
    lines.push(line(LOAD_LENGTH, 0));
    lines.push(branch(IF_AT_LEAST, HEADER + Sieve::SEEN as u32, 1, 0));
    lines.push(line(RETURN, PASS));
    unless_begins_with(&sieve.sifted, &mut lines);
    lines.push(line(JUMP, 1));
    lines.push(line(RETURN, PASS));
    for spared in &sieve.spared {
        if !spared.as_bytes().is_empty() {
            unless_begins_with(spared, &mut lines);
            lines.push(line(RETURN, PASS));
        }
    }
    lines.push(line(LOAD_NUMBER, sieve.salt));
    lines.push(line(STORE, 0));
    for at in (0..Sieve::SEEN as u32).step_by(4) {
        lines.extend([
            line(LOAD_WORD, HEADER + at),
            line(LOAD_STORED_X, 0),
            line(XOR_X, 0),
            line(MULTIPLY, Sieve::factor()),
            line(TO_X, 0),
            line(SHIFT_RIGHT, 15),
            line(XOR_X, 0),
            line(STORE, 0),
        ]);
    }
    lines.extend([
        line(SHIFT_RIGHT, 16),
        branch(IF_AT_LEAST, u32::from(sieve.share), 1, 0),
        line(RETURN, PASS),
        line(RETURN, DROP),
    ]);
    lines
}

/// Goes on with the next line where the datagram begins with `prefix`, else with the one after that.
fn unless_begins_with(prefix: &Prefix, lines: &mut Vec<sock_filter>) {
    let mut tests = Vec::new();
    let mut at = HEADER;
    let mut rest = prefix.as_bytes();
    while !rest.is_empty() {
        let (load, taken) = match rest.len() {
            4.. => (LOAD_WORD, 4),
            2.. => (LOAD_HALF, 2),
            _ => (LOAD_BYTE, 1),
        };
        let (now, behind) = rest.split_at(taken);
        let wanted = now.iter().fold(0, |sum, byte| sum << 8 | u32::from(*byte));
        tests.push((load, at, wanted));
        at += taken as u32;
        rest = behind;
    }
    let count = tests.len();
    for (number, (load, at, wanted)) in tests.into_iter().enumerate() {
        lines.push(line(load, at));
        // Behind the last test, over the next line.
        let away = 2 * (count - number - 1) + 1;
        lines.push(branch(IF_EQUAL, wanted, 0, away as u8));
    }
}

/// Puts a sieve before a socket, in the place of one that is there; `None`: takes it away.
pub(crate) fn attach(fd: BorrowedFd<'_>, sieve: Option<&Sieve>) -> io::Result<()> {
    let done = match sieve {
        Some(sieve) => {
            let mut lines = program(sieve);
            let program = sock_fprog {
                len: lines.len() as u16,
                filter: lines.as_mut_ptr(),
            };
            // SAFETY: the kernel copies the program, whose length it states, within the call.
            unsafe {
                libc::setsockopt(
                    fd.as_raw_fd(),
                    libc::SOL_SOCKET,
                    libc::SO_ATTACH_FILTER,
                    (&raw const program).cast(),
                    size_of::<sock_fprog>() as u32,
                )
            }
        }
        None => {
            let nothing = 0i32;
            // SAFETY: an int that lives through the call, of which the kernel reads nothing.
            unsafe {
                libc::setsockopt(
                    fd.as_raw_fd(),
                    libc::SOL_SOCKET,
                    libc::SO_DETACH_FILTER,
                    (&raw const nothing).cast(),
                    size_of::<i32>() as u32,
                )
            }
        }
    };
    match done {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::os::fd::AsFd as _;

    /// The kernel lets through exactly what the sieve says.
    #[test]
    fn the_kernel_sifts_as_the_sieve_says() {
        let to = UdpSocket::bind("127.0.0.1:0").unwrap();
        to.set_nonblocking(true).unwrap();
        let from = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = to.local_addr().unwrap();
        let beginnings = [
            "INVITE sip:2000@192.0.2.1 SIP/2.0\r\nVia: SIP/2.0/UDP h;branch=z9hG4bK-",
            "INVITE sip:192.0.2.1:5060 SIP/2.0\r\nVia: SIP/2.0/UDP h;branch=z9hG4bK-",
            "INVITE urn:service:sos SIP/2.0\r\nVia: SIP/2.0/UDP h;branch=z9hG4bK-",
            "BYE sip:2000@192.0.2.1 SIP/2.0\r\nVia: SIP/2.0/UDP h;branch=z9hG4bK-",
        ];
        let mut buffer = [0; 2_048];
        let mut dropped = 0;
        let mut sent = 0;
        for (share, spared) in [
            (0, "INVITE sip:192.0.2.1:5060"),
            (6_553, "INVITE sip:192.0.2.1:5060 SIP"),
            (32_768, ""),
            (65_535, "INVITE sip:1"),
        ] {
            let sieve = Sieve {
                sifted: Prefix::new(b"INVITE "),
                spared: [spared.as_bytes(), b"INVITE urn:"].map(Prefix::new),
                share,
                salt: 0x1234_5678,
            };
            attach(to.as_fd(), Some(&sieve)).unwrap();
            for number in 0..400 {
                for beginning in beginnings {
                    let mut bytes = format!("{beginning}{number}\r\n").into_bytes();
                    bytes.resize([100, 191, 192, 193, 300][number % 5].max(bytes.len()), b'x');
                    from.send_to(&bytes, address).unwrap();
                    sent += 1;
                    let came = to.recv(&mut buffer).is_ok();
                    assert_eq!(came, sieve.passes(&bytes), "{share} {beginning}{number}");
                    dropped += u64::from(!came);
                }
            }
        }
        assert!(dropped > 0 && dropped < sent);
        assert_eq!(crate::socket::socket_drops(to.as_fd()).unwrap(), dropped);
        attach(to.as_fd(), None).unwrap();
        let mut bytes = beginnings[0].as_bytes().to_vec();
        bytes.resize(300, b'x');
        from.send_to(&bytes, address).unwrap();
        assert!(to.recv(&mut buffer).is_ok());
        assert!(attach(to.as_fd(), None).is_err(), "there is none");
    }
}
