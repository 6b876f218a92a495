//! Compiles the load shedding rule [`engine::SocketFilter`] into a socket filter (classic BPF): dropping a datagram in
//! the kernel costs the thread that reads the socket nothing.

use engine::{Prefix, SocketFilter};
use libc::{sock_filter, sock_fprog};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// A socket filter sees the datagram with its UDP header.
const HEADER: u32 = 8;
const PASS: u32 = u32::MAX;
const DROP: u32 = 0;

// Opcodes, combined from linux/bpf_common.h.
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

fn instruction(code: u16, k: u32) -> sock_filter {
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

/// Compiles the filter program.
fn program(filter: &SocketFilter) -> Vec<sock_filter> {
    let mut instructions = Vec::with_capacity(512);
    // Short datagrams pass; from here on every load is inside the datagram.
    instructions.push(instruction(LOAD_LENGTH, 0));
    instructions.push(branch(
        IF_AT_LEAST,
        HEADER + SocketFilter::HASHED_BYTES as u32,
        1,
        0,
    ));
    instructions.push(instruction(RETURN, PASS));
    skip_unless_prefix(&filter.matched, &mut instructions);
    instructions.push(instruction(JUMP, 1));
    instructions.push(instruction(RETURN, PASS));
    for exempt in &filter.exempt {
        if !exempt.as_bytes().is_empty() {
            skip_unless_prefix(exempt, &mut instructions);
            instructions.push(instruction(RETURN, PASS));
        }
    }
    instructions.push(instruction(LOAD_NUMBER, filter.salt));
    instructions.push(instruction(STORE, 0));
    for at in (0..SocketFilter::HASHED_BYTES as u32).step_by(4) {
        instructions.extend([
            instruction(LOAD_WORD, HEADER + at),
            instruction(LOAD_STORED_X, 0),
            instruction(XOR_X, 0),
            instruction(MULTIPLY, SocketFilter::factor()),
            instruction(TO_X, 0),
            instruction(SHIFT_RIGHT, 15),
            instruction(XOR_X, 0),
            instruction(STORE, 0),
        ]);
    }
    instructions.extend([
        instruction(SHIFT_RIGHT, 16),
        branch(IF_AT_LEAST, u32::from(filter.pass_share), 1, 0),
        instruction(RETURN, PASS),
        instruction(RETURN, DROP),
    ]);
    instructions
}

/// Executes the next instruction if the datagram begins with `prefix`, else the one after it.
fn skip_unless_prefix(prefix: &Prefix, instructions: &mut Vec<sock_filter>) {
    let mut tests = Vec::new();
    let mut at = HEADER;
    let mut rest = prefix.as_bytes();
    while !rest.is_empty() {
        let (load, size) = match rest.len() {
            4.. => (LOAD_WORD, 4),
            2.. => (LOAD_HALF, 2),
            _ => (LOAD_BYTE, 1),
        };
        let (now, behind) = rest.split_at(size);
        let value = now.iter().fold(0, |sum, byte| sum << 8 | u32::from(*byte));
        tests.push((load, at, value));
        at += size as u32;
        rest = behind;
    }
    let count = tests.len();
    for (number, (load, at, value)) in tests.into_iter().enumerate() {
        instructions.push(instruction(load, at));
        // A failed test jumps behind the last test and over the next instruction.
        let offset = 2 * (count - number - 1) + 1;
        instructions.push(branch(IF_EQUAL, value, 0, offset as u8));
    }
}

/// Attaches the filter to a socket, replacing a present one; `None` detaches it.
pub(crate) fn attach(fd: BorrowedFd<'_>, filter: Option<&SocketFilter>) -> io::Result<()> {
    let done = match filter {
        Some(filter) => {
            let mut instructions = program(filter);
            let program = sock_fprog {
                len: instructions.len() as u16,
                filter: instructions.as_mut_ptr(),
            };
            // SAFETY: the kernel copies the program, whose length is stated, within the call.
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
            // SAFETY: an int that outlives the call; the kernel ignores its value.
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

    /// The kernel passes exactly the datagrams that the rule passes.
    #[test]
    fn socket_filter_agrees_with_the_rule() {
        let to = UdpSocket::bind("127.0.0.1:0").unwrap();
        to.set_nonblocking(true).unwrap();
        let from = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = to.local_addr().unwrap();
        let beginnings = [
            "INVITE sip:2000@192.0.2.1 SIP/2.0\r\nVia: SIP/2.0/UDP h;branch=z9hG4bK-",
            "INVITE sip:192.0.2.1:5060 SIP/2.0\r\nVia: SIP/2.0/UDP h;branch=z9hG4bK-",
            "INVITE urn:service:sos SIP/2.0\r\nVia: SIP/2.0/UDP h;branch=z9hG4bK-",
            "INVITE sip:112@192.0.2.1 SIP/2.0\r\nVia: SIP/2.0/UDP h;branch=z9hG4bK-",
            "BYE sip:2000@192.0.2.1 SIP/2.0\r\nVia: SIP/2.0/UDP h;branch=z9hG4bK-",
        ];
        let mut buffer = [0; 2_048];
        let mut dropped = 0;
        let mut sent = 0;
        for (pass_share, exempt) in [
            (0, "INVITE sip:192.0.2.1:5060"),
            (6_553, "INVITE sip:192.0.2.1:5060 SIP"),
            (32_768, ""),
            (65_535, "INVITE sip:1"),
        ] {
            let filter = SocketFilter {
                matched: Prefix::new(b"INVITE "),
                exempt: SocketFilter::exempting([
                    exempt.as_bytes(),
                    b"INVITE urn:",
                    b"",
                    b"",
                    b"",
                    b"INVITE sip:112@",
                ]),
                pass_share,
                salt: 0x1234_5678,
            };
            attach(to.as_fd(), Some(&filter)).unwrap();
            for number in 0..400 {
                for beginning in beginnings {
                    let mut bytes = format!("{beginning}{number}\r\n").into_bytes();
                    bytes.resize([100, 191, 192, 193, 300][number % 5].max(bytes.len()), b'x');
                    from.send_to(&bytes, address).unwrap();
                    sent += 1;
                    let received = to.recv(&mut buffer).is_ok();
                    assert_eq!(
                        received,
                        filter.passes(&bytes),
                        "{pass_share} {beginning}{number}"
                    );
                    dropped += u64::from(!received);
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
        assert!(attach(to.as_fd(), None).is_err(), "no filter is attached");
    }
}
