//! The driver over real sockets; the only owner of a clock and of unsafe.
