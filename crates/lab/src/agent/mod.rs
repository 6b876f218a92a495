//! Agents: a subject on another host, started, measured and stopped there by `hornwork lab agent`.
//!
//! Both sides prove by HMAC that they know the token, which is never sent; each later message has an HMAC with its
//! direction and number. With a certificate the connection is TLS. Requests name subject files of the agent: nothing
//! else can be executed.

mod channel;
mod client;
mod limiter;
mod messages;
mod server;
mod wire;

pub use client::{AgentAccess, AgentSubject, Described, describe};
pub use server::{AgentOptions, run};
pub use wire::{Token, read_token};
