//! Digest authentication in both roles (RFC 7616, RFC 2617, RFC 2069; in SIP: RFC 3261 section 22, RFC 8760).

mod client;
mod hash;
mod server;

pub use client::{Challenge, ClientSession, answer_header};
pub use hash::{Algorithm, Hash, Hex, Proof, Qop, Secret, ha1, user_hash};
pub use server::{NonceKey, Presented, Refusal, Server, ServerConfig};
