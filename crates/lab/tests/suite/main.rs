//! The integration tests of `lab` as one program, which links once.

mod border;
mod broken;
mod esp;
mod foreign;
mod media_plane;
mod networks;
mod over_tls;
mod over_websocket;
mod overload;
mod page_links;
mod rates;
mod report;
mod report_links;
mod run;
mod scenario_limits;
mod scenario_sipp;
mod scenarios;
mod subjects;
mod trials;
mod volte;
mod workers;
