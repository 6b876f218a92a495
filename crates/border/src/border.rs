//! The border.

pub(crate) mod sockets;
