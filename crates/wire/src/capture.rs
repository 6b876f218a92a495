//! Capture files: pcap (both byte orders, micro- and nanoseconds) and pcapng, read from byte slices and written.
//!
//! Nothing here reads a file: the caller hands in what it has and is told how much was used, so a capture of any size is
//! read through a small buffer.

mod reader;
mod writer;

pub use reader::{CaptureError, CapturedFrame, Reader, Step};
pub use writer::{PcapWriter, PcapngWriter};

#[cfg(test)]
mod tests;
