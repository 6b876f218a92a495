//! Digest authentication in both roles (RFC 7616, RFC 2617, RFC 2069; in SIP: RFC 3261 section 22, RFC 8760).

mod client;
mod hash;
mod server;

pub use client::{Challenge, ClientSession, answer_header};
pub use hash::{Algorithm, Hash, Hex, Qop, ResponseInput, Secret, ha1, user_hash};
pub use server::{DigestServer, NonceKey, PresentedCredentials, Refusal, ServerConfig};
