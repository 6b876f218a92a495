//! The integration tests of `lab` as one program, which links once.

mod analyse_links;
mod analyse_made;
mod analyse_oracle;
mod analyse_sip;
mod analyse_tshark;
mod border;
mod broken;
mod foreign;
mod made;
mod media_plane;
mod over_tls;
mod over_websocket;
mod overload;
mod rates;
mod report;
mod run;
mod scenarios;
mod trials;
mod volte;
mod workers;
