//! The integration tests of `protect` in one program: one link step and shared fixtures.

mod common;
mod digest;
mod dtls;
mod dtls_openssl;
mod esp;
mod esp_endpoint;
mod esp_gateway;
mod esp_gateway_numbers;
mod esp_simulation;
mod esp_vectors;
mod fuzz_seeds;
mod ice;
mod ice_rtpengine;
mod sdes;
mod srtp;
mod srtp_libsrtp;
mod srtp_vectors;
