//! Capture files: pcap (both byte orders, micro- and nanoseconds) and pcapng, read from byte slices and written.
//!
//! This module does no file IO: the caller supplies bytes and gets the number of consumed bytes, so that a capture of
//! any size is read through a small buffer.

mod reader;
mod writer;

pub use reader::{CaptureError, CapturedFrame, Reader, Step};
pub use writer::{PcapWriter, PcapngWriter};

#[cfg(test)]
mod tests;
