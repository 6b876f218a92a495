//! The integration tests of `lab`, one program: shared start-up, one link.

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
