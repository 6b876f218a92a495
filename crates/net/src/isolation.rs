//! A program in namespaces of its own (namespaces(7)): it has its own network, users and mounts, and reaches others
//! only by the descriptors that it is given.

use crate::network::raise_loopback;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::ffi::CString;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

fn c_string(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| io::ErrorKind::InvalidInput.into())
}

fn unshare(flags: libc::c_int) -> io::Result<()> {
    // SAFETY: it changes namespaces of this process, which has one thread, and no memory.
    match unsafe { libc::unshare(flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Moves this process, which must have one thread, into namespaces of its own: network, mounts, and users where the
/// kernel permits it to this user. Its user is root there, and has no right outside. Loopback is up.
///
/// # Errors
/// Not permitted: the kernel permits neither user namespaces to this user nor network namespaces (CAP_SYS_ADMIN).
pub fn isolate_process() -> io::Result<()> {
    let (user, group) = (
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
    );
    let namespaces = libc::CLONE_NEWNET | libc::CLONE_NEWNS;
    match unshare(namespaces | libc::CLONE_NEWUSER) {
        Ok(()) => {
            // A group map without this right needs the first line (user_namespaces(7)).
            std::fs::write("/proc/self/setgroups", "deny")?;
            std::fs::write("/proc/self/uid_map", format!("0 {user} 1"))?;
            std::fs::write("/proc/self/gid_map", format!("0 {group} 1"))?;
        }
        // Root may do without.
        Err(_) => unshare(namespaces)?,
    }
    // Mounts of this process are seen by no other.
    let root = c_string(Path::new("/"))?;
    let flags = libc::MS_REC | libc::MS_PRIVATE;
    mount(None, &root, flags)?;
    raise_loopback()
}

fn mount(source: Option<&CString>, target: &CString, flags: libc::c_ulong) -> io::Result<()> {
    let null = std::ptr::null();
    let source = source.map_or(null, |source| source.as_ptr());
    // SAFETY: the strings end with zero and outlive the call; the other pointers are null, as these operations require.
    match unsafe { libc::mount(source, target.as_ptr(), null, flags, null.cast()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Shows the file or folder `source` at the place `target`, which exists, to this process and its children.
///
/// # Errors
/// One of them does not exist, or the process has no mounts of its own ([`isolate_process`]).
pub fn bind_mount(source: &Path, target: &Path) -> io::Result<()> {
    mount(
        Some(&c_string(source)?),
        &c_string(target)?,
        libc::MS_BIND | libc::MS_REC,
    )
}

/// Sends an open file to the process at the other end of a Unix socket (unix(7), SCM_RIGHTS).
///
/// # Errors
/// The socket is closed.
pub fn send_descriptor(socket: BorrowedFd<'_>, descriptor: BorrowedFd<'_>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor];
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    sendmsg(
        socket,
        &[IoSlice::new(b"d")],
        &mut control,
        SendFlags::empty(),
    )?;
    Ok(())
}

/// Receives an open file from [`send_descriptor`]; waits for it.
///
/// # Errors
/// The socket is closed, or something else arrived.
pub fn receive_descriptor(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0; 1];
    recvmsg(
        socket.as_fd(),
        &mut [IoSliceMut::new(&mut byte)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(mut descriptors) = message
            && let Some(descriptor) = descriptors.next()
        {
            return Ok(descriptor);
        }
    }
    Err(io::Error::new(
        io::ErrorKind::UnexpectedEof,
        "the other process sent no descriptor",
    ))
}
