//! The integration tests of `analyse`, one program: shared start-up, one link.

mod built;
mod captures;
mod esp_keys;
mod links;
mod oracle;
mod sip;
mod tshark;
