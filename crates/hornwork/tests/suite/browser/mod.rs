//! A headless browser with a page that calls. The test serves the page, and receives its log and audio.

use crate::common::Process;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const PAGE: &str = include_str!("page.html");

/// Output of the page so far.
#[derive(Clone, Debug, Default)]
pub struct PageOutput {
    /// Log lines of the page.
    pub words: String,
    /// Received audio: 8000 samples per second.
    pub heard: Vec<i16>,
}

/// A browser with its page.
pub struct Browser {
    /// The browser process.
    pub process: Process,
    said: Arc<Mutex<PageOutput>>,
}

impl Browser {
    /// Starts `program` with the file `voice` as microphone; the page calls `callee` over the WebSocket `server` for
    /// `seconds` seconds. Without a callee it registers as 1000 and answers a call of that duration.
    pub fn call(
        program: &str,
        folder: &Path,
        voice: &Path,
        server: &str,
        callee: &str,
        seconds: u32,
    ) -> Browser {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let here = listener.local_addr().expect("address");
        let said = Arc::new(Mutex::new(PageOutput::default()));
        let output = said.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let output = output.clone();
                std::thread::spawn(move || serve(stream, &output));
            }
        });
        let process = Process::start(
            Command::new(program)
                .args([
                    "--headless=new",
                    "--no-sandbox",
                    "--disable-gpu",
                    "--disable-dev-shm-usage",
                    "--no-first-run",
                    "--disable-background-networking",
                    "--ignore-certificate-errors",
                    "--allow-loopback-in-peer-connection",
                    "--autoplay-policy=no-user-gesture-required",
                    "--use-fake-ui-for-media-stream",
                    "--use-fake-device-for-media-stream",
                ])
                .arg(format!(
                    "--use-file-for-fake-audio-capture={}%noloop",
                    voice.display()
                ))
                .arg(format!(
                    "--user-data-dir={}",
                    folder.join("profile").display()
                ))
                .arg(format!(
                    "http://{here}/?server={server}&callee={callee}&seconds={seconds}"
                ))
                .env("HOME", folder)
                .stdin(Stdio::null()),
            &folder.join("browser.log"),
        );
        Browser { process, said }
    }

    /// Output of the page so far.
    pub fn log(&self) -> PageOutput {
        self.said
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .clone()
    }

    /// Waits until the page has logged `word`, or its failure.
    pub fn until(&self, word: &str, limit: Duration) -> bool {
        let end = Instant::now() + limit;
        while Instant::now() < end {
            let said = self.log().words;
            if said.contains(word) || said.contains("failed") {
                return said.contains(word);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        false
    }
}

/// Handles one request of the page; connections are not kept.
fn serve(mut stream: TcpStream, output: &Mutex<PageOutput>) {
    let Some((path, body)) = request(&mut stream) else {
        return;
    };
    let mut said = output
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let answer = match path.as_str() {
        "/said" => {
            said.words.push_str(&String::from_utf8_lossy(&body));
            said.words.push('\n');
            ""
        }
        "/heard" => {
            let pairs = body.as_chunks::<2>().0;
            said.heard = pairs.iter().map(|pair| i16::from_le_bytes(*pair)).collect();
            ""
        }
        _ => PAGE,
    };
    drop(said);
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        answer.len()
    );
    let _ = stream.write_all(&[head.as_bytes(), answer.as_bytes()].concat());
}

/// Path and body of a request.
fn request(stream: &mut TcpStream) -> Option<(String, Vec<u8>)> {
    stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    let mut bytes = Vec::new();
    let mut buffer = [0; 65_536];
    let end = loop {
        if let Some(at) = bytes.windows(4).position(|part| part == b"\r\n\r\n") {
            break at + 4;
        }
        let length = stream.read(&mut buffer).ok().filter(|length| *length > 0)?;
        bytes.extend_from_slice(&buffer[..length]);
    };
    let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
    let length: usize = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length:"))
        .map_or(0, |value| value.trim().parse().unwrap_or(0));
    while bytes.len() < end + length {
        let read = stream.read(&mut buffer).ok().filter(|length| *length > 0)?;
        bytes.extend_from_slice(&buffer[..read]);
    }
    let path = head.split([' ', '?']).nth(1)?.to_owned();
    Some((path, bytes[end..end + length].to_vec()))
}
