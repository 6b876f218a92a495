//! The shared messages: those of RFC 4475 and RFC 5118 with their expected results, unusual messages from the field,
//! fuzz seeds.

use std::path::{Path, PathBuf};
use wire::sip::{HeaderId, Host, Message, Method, Uri};

/// The test data, if present.
fn testdata() -> Option<PathBuf> {
    let path = std::env::var_os("HORNWORK_TESTDATA").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/testdata"),
        PathBuf::from,
    );
    if !path.is_dir() {
        println!("skipped: testdata absent");
        return None;
    }
    Some(path)
}

fn files(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .expect("folder of the test data")
        .map(|entry| entry.expect("entry").path())
        .filter(|path| path.is_file())
        .map(|path| {
            let name = path
                .file_name()
                .expect("name")
                .to_string_lossy()
                .into_owned();
            (name, std::fs::read(&path).expect("readable"))
        })
        .collect();
    files.sort();
    files
}

/// The results that the table allows: accepted, or refused with one of these codes (0: a response dropped).
fn judge(class: &str, expected: &str, outcome: Result<(), u16>) -> bool {
    match outcome {
        Ok(()) => class == "valid" || expected.contains("liberal accept"),
        Err(0) => expected.contains("discard"),
        Err(status) => class != "valid" && expected.contains(&status.to_string()),
    }
}

fn torture(folder: &str) {
    let Some(root) = testdata() else { return };
    let folder = root.join("sip-torture").join(folder);
    let table = std::fs::read_to_string(folder.join("EXPECTED.tsv")).expect("table");
    let mut seen = 0;
    for row in table.lines().skip(1) {
        let columns: Vec<_> = row.split('\t').collect();
        let (name, class, expected) = (columns[0], columns[2], columns[3]);
        let bytes = std::fs::read(folder.join(format!("{name}.dat"))).expect("message");
        let class = if expected.starts_with("400") {
            "invalid"
        } else {
            class
        };
        let message =
            Message::parse_datagram(&bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
        let outcome = message.validate().map_err(|rejection| rejection.status);
        assert!(
            judge(class, expected, outcome),
            "{name}: {:?}, expected {expected}",
            message.validate()
        );
        seen += 1;
    }
    assert_eq!(seen, files(&folder).len() - 1, "every message has its row");
}

#[test]
fn rfc4475() {
    torture("rfc4475");
}

#[test]
fn rfc5118() {
    torture("rfc5118");
}

#[test]
fn torture_message_details_are_parsed() {
    let Some(root) = testdata() else { return };
    let read = |name: &str| std::fs::read(root.join("sip-torture").join(name)).expect("message");

    let bytes = read("rfc4475/wsinv.dat");
    let message = Message::parse(&bytes).unwrap();
    assert_eq!(message.header(HeaderId::Subject), Some(&b""[..]));
    assert_eq!(message.max_forwards(), Ok(68));
    assert_eq!(message.vias().filter(Result::is_ok).count(), 3);
    assert_eq!(message.cseq().unwrap().number, 9);
    assert_eq!(message.from().unwrap().display, b"\"J Rosenberg \\\\\\\"\"");
    assert_eq!(message.from().unwrap().tag(), Some(&b"98asjd8"[..]));
    assert_eq!(
        message.contact().unwrap().params.get(b"newparam"),
        Some(&b"newvalue"[..])
    );

    let bytes = read("rfc4475/esc01.dat");
    let message = Message::parse(&bytes).unwrap();
    let uri = Uri::parse(message.request_uri()).unwrap();
    assert_eq!(uri.user, Some(&b"sips%3Auser%40example.com"[..]));
    assert_eq!(uri.host, Host::Name(b"example.net"));

    let bytes = read("rfc4475/esc02.dat");
    assert_eq!(
        Message::parse(&bytes).unwrap().method(),
        Method::Other(b"RE%47IST%45R")
    );

    let bytes = read("rfc4475/dblreq.dat");
    let message = Message::parse_datagram(&bytes).unwrap();
    assert_eq!(
        (message.method(), message.body()),
        (Method::Register, &b""[..])
    );
    assert!(message.bytes().len() < bytes.len());

    let bytes = read("rfc4475/noreason.dat");
    let message = Message::parse(&bytes).unwrap();
    assert_eq!((message.status(), message.reason()), (100, &b""[..]));

    let bytes = read("rfc4475/unreason.dat");
    let reason = Message::parse(&bytes).unwrap().reason();
    assert!(std::str::from_utf8(reason).is_ok_and(|reason| !reason.is_ascii()));

    let bytes = read("rfc4475/lwsdisp.dat");
    assert_eq!(
        Message::parse(&bytes).unwrap().from().unwrap().display,
        b"caller"
    );

    let bytes = read("rfc5118/port-unambiguous.dat");
    let uri = Message::parse(&bytes).unwrap().request_uri();
    assert_eq!(Uri::parse(uri).unwrap().port, Some(5070));

    let bytes = read("rfc5118/via-received-param-with-delim.dat");
    let via = Message::parse(&bytes)
        .unwrap()
        .via()
        .map(|via| via.received());
    assert_eq!(via, Ok(Some("2001:db8::9:255".parse().unwrap())));
}

/// The corpus consists of text files: most have LF line ends, which do not occur in networks.
#[test]
fn field_corpus_and_seeds() {
    let Some(root) = testdata() else { return };
    let mut sound = Vec::new();
    for folder in [
        "sip-corpus/kamailio",
        "fuzz-seeds/pjsip-sip",
        "fuzz-seeds/profuzzbench",
        "fuzz-seeds/pjsip-uri",
    ] {
        for (name, bytes) in files(&root.join(folder)) {
            wire::fuzz::fuzz_sip(&bytes);
            let text = String::from_utf8_lossy(&bytes)
                .replace("\r\n", "\n")
                .replace('\n', "\r\n");
            wire::fuzz::fuzz_sip(text.as_bytes());
            if name.ends_with(".sip") {
                let message = Message::parse_framed(text.as_bytes())
                    .unwrap_or_else(|error| panic!("{name}: {error}"));
                assert!(message.is_request(), "{name}");
                if message.validate().is_ok() {
                    sound.push(name);
                }
            }
        }
    }
    // The others lack To or a line end, have a Content-Length beyond a truncated body, or blanks or headers in the
    // request line.
    let sane = "bye00 bye_chris invite00 invite01 invite02 invite03 invite04 invite05 message03 msbye register \
                register02 register03 route";
    let sane: Vec<_> = sane.split(' ').map(|name| format!("{name}.sip")).collect();
    assert_eq!(sound, sane);
}
