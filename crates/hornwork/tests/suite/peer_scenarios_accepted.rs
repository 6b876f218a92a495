//! Scenarios accepted by SIPp and by our player: small ones for each shape found in scenarios of other projects, SIPp's
//! built-in ones, and the shared ones. SIPp is the reference; missing files, `-key` values and 3PCC, which needs a
//! peer, are excluded.

use crate::common::{free_port, installed, root, scratch, testdata};
use lab::sipp::ScenarioOptions;
use lab::sipp::options::load;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Steps before, or around, the tested part.
const REQUEST: &str = "<send retrans=\"500\"><![CDATA[
INVITE sip:[service]@[remote_ip]:[remote_port] SIP/2.0
Via: SIP/2.0/[transport] [local_ip]:[local_port];branch=[branch]
From: <sip:a@[local_ip]>;tag=[call_number]
To: <sip:b@[remote_ip]>[peer_tag_param]
Call-ID: [call_id]
CSeq: 1 INVITE
KEYWORDS
Content-Length: [len]

]]></send>";

/// Steps after a request.
const STEPS: &[&str] = &[
    "<recv response=\"200\" id=\"1\" occurence=\"2\"/>",
    "<recv response=\"200\" rtd=\"true\" rtd=\"true\"/>",
    "<recv response=\"200\"rtd=\"true\"crlf=\"true\"></recv>",
    "<recv response='200' optional=\"false\"/>",
    "<recv response=\"100\" optional=\"true\"/><recv response=\"200\" optional=\"true\"/>",
    "<recv response=\"180\" optional=\"global\"/><recv response=\"200\"/>",
    "<recv response=\"180\" optional=\"true\" advance_state=\"false\" next=\"1\"/><recv response=\"200\"/><label id=\"1\"/><nop/>",
    "<recv response=\"200\" request=\"INVITE\"/>",
    "<recv/>",
    "<recv response=\"200\" timeout=\"\" auth=\"2\" rrs=\"\"/>",
    "<recv response=\"200\" timeout=\"3000\" ontimeout=\"late\"/><label id=\"late\"/><nop/>",
    "<recv response=\"200\"><ereg regexp=\"a\" search_in=\"msg\" assign_to=\"1\"/></recv>",
    "<recv response=\"200\"><action><log message=\"a\"/></action><action><log message=\"b\"/></action></recv>",
    "<recv response=\"200\" lost=\"10\" ignoresdp=\"true\" hide=\"true\" display=\"x\"/>",
    "<recv request=\"INVITE|UPDATE\" regexp_match=\"true\"/>",
    "<!-- a -- b --><recv response=\"200\"/><!---->",
    "<recv response=\"200\"/>text between steps<nop/>",
    "<pause/>",
    "<pause milliseconds=\"200\" crlf=\"true\"/>",
    "<pause min=\"1\" max=\"20\"/>",
    "<pause distribution=\"uniform\" min=\"1\" max=\"20\"/>",
    "<pause distribution=\"fixed\" value=\"20\"/>",
    "<pause distribution=\"normal\" mean=\"60\" stdev=\"15\"/>",
    "<pause normal=\"true\" mean=\"60\" stdev=\"15\"/>",
    "<pause distribution=\"lognormal\" mean=\"1\" stdev=\"1\"/>",
    "<pause distribution=\"exponential\" mean=\"900\"/>",
    "<pause distribution=\"weibull\" lambda=\"3\" k=\"4\"/>",
    "<pause distribution=\"pareto\" k=\"3\" x_m=\"4\"/>",
    "<pause distribution=\"gpareto\" shape=\"1\" scale=\"2\" location=\"3\"/>",
    "<pause distribution=\"gamma\" k=\"3\" theta=\"4\"/>",
    "<pause distribution=\"negbin\" p=\"0.1\" n=\"2\" sanity_check=\"false\"/>",
    "<timewait milliseconds=\"400\"/>",
    "<nop hiderest=\"true\"/><nop/>",
    "<nop condexec=\"a\" condexec_inverse=\"true\"><action><assign assign_to=\"a\" value=\"1\"/></action></nop>",
    "<nop next=\"1\" chance=\"0.5\"/><nop/><label id=\"1\"/><nop/>",
    "<nop next=\"1\" test=\"t\"/><label id=\"1\"/><nop><action><assign assign_to=\"t\" value=\"1\"/></action></nop>",
    "<nop start_rtd=\"x\"/><nop rtd=\"x\" repeat_rtd=\"true\" counter=\"c\"/>",
    "<Global variables=\"g,h\"/><nop><action><assign assign_to=\"g\" value=\"1\"/><assign assign_to=\"h\" variable=\"g\"/></action></nop>",
    "<User variables=\"u\"/><nop><action><assign assign_to=\"u\" value=\"1\"/><log message=\"[$u]\"/></action></nop>",
    "<nop><action><assign assign_to=\"r\" value=\"1\"/></action></nop><Reference variables=\"r\"/>",
    "<nop/><ResponseTimeRepartition value=\"10, 20\"/><CallLengthRepartition value=\"10, 20\"/>",
    "<init><nop><action><log message=\"x\"/></action></nop></init><nop/>",
    "<DefaultMessage id=\"3pcc_abort\"><![CDATA[call-id: [call_id]\ninternal-cmd: abort_call\n\n]]></DefaultMessage><nop/>",
];

/// Actions of a step.
const ACTIONS: &[&str] = &[
    "<ereg regexp=\"sip:(.*)@([^;>]+)\" search_in=\"hdr\" header=\"Contact:\" assign_to=\"1,2,3\"/><log message=\"[$1][$2][$3]\"/>",
    "<ereg regexp=\"<sip:\\\"(a\\\\)\" search_in=\"msg\" check_it=\"false\" assign_to=\"1\"/><log message=\"[$1]\"/>",
    "<ereg regexp=\"[[:digit:]]{1,3}\\.[0-9]+\" search_in=\"body\" assign_to=\"1\"/><log message=\"[$1]\"/>",
    "<ereg regexp=\".*\" search_in=\"hdr\" header=\"CSeq:\" case_indep=\"true\" start_line=\"true\" occurrence=\"1\" assign_to=\"1\"/><log message=\"[$1]\"/>",
    "<ereg regexp=\"a\" search_in=\"var\" variable=\"v\" check_it_inverse=\"true\" assign_to=\"1\"/><log message=\"[$1][$v]\"/>",
    "<log message=\"[last_Via:] [last_message] [$a]\"/><assignstr assign_to=\"a\" value=\"b [call_number]\"/>",
    "<warning message=\"x\"/><log message=\"\"/>",
    "<assign assign_to=\"a\" value=\"1\"/><add assign_to=\"a\" value=\"2.5\"/><subtract assign_to=\"a\" variable=\"a\"/><multiply assign_to=\"a\" value=\"\"/><divide assign_to=\"a\" value=\"2\"/>",
    "<sample assign_to=\"a\" distribution=\"uniform\" min=\"1\" max=\"2\"/><todouble assign_to=\"b\" variable=\"a\"/><test assign_to=\"c\" variable=\"b\" compare=\"greater_than\" value=\"\"/><log message=\"[$c]\"/>",
    "<assign assign_to=\"a\" value=\"1\"/><test variable=\"a\" compare=\"equal\" value=\"1\" check_it=\"true\"/>",
    "<assign assign_to=\"a\" value=\"1\"/><assign assign_to=\"b\" value=\"1\"/><test assign_to=\"c\" variable=\"a\" variable2=\"b\" compare=\"less_than_equal\"/><log message=\"[$c]\"/>",
    "<assignstr assign_to=\"a\" value=\"1\"/><strcmp assign_to=\"b\" variable=\"a\" value=\"1\"/><log message=\"[$b]\"/>",
    "<assignstr assign_to=\"a\" value=\"1\"/><strcmp variable=\"a\" value=\"1\" check_it=\"true\"/>",
    "<assignstr assign_to=\"a\" value=\" 1 \"/><trim assign_to=\"a\"/>",
    "<gettimeofday assign_to=\"s,us\"/><log message=\"[$s].[$us]\"/>",
    "<index assign_to=\"i\"/><log message=\"[$i]\"/>",
    "<jump value=\"1\"/>",
    "<pauserestore value=\"0\"/>",
    "<lookup assign_to=\"l\" file=\"fields.csv\" key=\"a\"/><log message=\"[field1 line=[$l]]\"/>",
    "<insert file=\"fields.csv\" value=\"x;y\"/>",
    "<replace file=\"fields.csv\" line=\"0\" value=\"x;y\"/>",
    "<setdest host=\"127.0.0.1\" port=\"5060\" protocol=\"UDP\"/>",
    "<closecon/>",
    "<verifyauth assign_to=\"v\" username=\"[field0]\" password=\"b\"/><log message=\"[$v]\"/>",
    "<exec int_cmd=\"stop_call\"/>",
    "<exec int_cmd=\"stop_everything\"/>",
    "<exec command=\"true\"/>",
    "<exec rtp_stream=\"pause\"/><exec rtp_stream=\"resume\"/>",
    "<exec rtp_stream=\"apattern,1,0,PCMU/8000\"/><exec rtp_stream=\"pauseapattern\"/>",
    "<exec rtp_stream=\"vpattern,1,99,H264/90000\"/>",
    "<exec rtp_echo=\"startaudio,0,PCMU/8000\"/><exec rtp_echo=\"stopaudio,0,PCMU/8000\"/>",
    "<exec rtp_echo=\"startvideo,99,H264/90000\"/>",
    "<exec play_dtmf=\"1234*#,200\"/>",
    "<rtp_echo value=\"1\"/>",
];

/// Lines of a message.
const LINES: &[&str] = &[
    "X: [media_port] [media_port+2] [media_ip] [media_ip_type]",
    "X: [auto_media_port] [auto_media_port+1]",
    "X: [rtpstream_audio_port] [rtpstream_audio_port+1] [rtpstream_video_port+1]",
    "X: [call_number+1] [pid+1] [local_port+2] [remote_port-1]",
    "X: [cseq] [cseq+1] [branch-2] [msg_index] [clock_tick] [timestamp] [date]",
    "X: [users] [userid] [sipp_version] [dynamic_id] [server_ip] [local_ip_type]",
    "X: [last_CSeq:] [last_cseq_number+1] [last_Request_URI] [last_To]",
    "X: [field0] [field1 file=\"fields.csv\"] [field1 file=\"fields.csv\" line=\"0\"]",
    "[field3]",
    "[authentication]",
    "[authentication username=joe password=schmo]",
    "[authentication username=[field0] password=[field1]]",
    "[routes]",
    "X: \\x5bliteral\\x5d",
    "X: [next_url] [remote_host] [transport] [call_id]",
];

fn scenario_with(inside: &str) -> String {
    format!(
        "<?xml version=\"1.0\" encoding=\"ISO-8859-1\" ?>\n<!DOCTYPE scenario SYSTEM \"sipp.dtd\">\n<scenario name=\"shape\">\n{inside}\n</scenario>\n"
    )
}

/// Our scenarios, one per shape.
fn shapes() -> Vec<String> {
    let request = REQUEST.replace("KEYWORDS", "X: y");
    let mut all: Vec<String> = STEPS
        .iter()
        .map(|steps| scenario_with(&format!("{request}{steps}")))
        .collect();
    all.extend(ACTIONS.iter().map(|actions| {
        scenario_with(&format!(
            "{request}<recv response=\"200\"><action>{actions}</action></recv>"
        ))
    }));
    all.extend(LINES.iter().map(|line| {
        scenario_with(&format!(
            "{}<recv response=\"200\"/>",
            REQUEST.replace("KEYWORDS", line)
        ))
    }));
    // Transactions, and send's own attributes.
    let named = request.replace(
        "retrans=\"500\"",
        "retrans=\"500\" start_txn=\"a\" timeout=\"2000\"",
    ) + "<recv response=\"200\" response_txn=\"a\"/>"
        + &request
            .replace("INVITE", "ACK")
            .replace("retrans=\"500\"", "ack_txn=\"a\"");
    all.push(scenario_with(&named));
    // Called sides.
    let answer = "<send><![CDATA[\nSIP/2.0 200 OK\n[last_Via:]\n[last_From:]\n[last_To:];tag=[pid]\n[last_Call-ID:]\n[last_CSeq:]\nContent-Length: 0\n\n]]></send>";
    for begin in [
        "",
        "<User variables=\"a\"/>",
        "<nop/>",
        "<pause milliseconds=\"1\"/>",
    ] {
        all.push(scenario_with(&format!(
            "{begin}<recv request=\"INVITE\" crlf=\"true\"/>{answer}<recv request=\"ACK\" optional=\"true\"/><recv request=\"BYE\"/>{answer}"
        )));
    }
    all
}

/// Whether SIPp accepts a scenario, that is, opens its sockets.
fn is_accepted_by_sipp(file: &Path, folder: &Path) -> bool {
    let log_file = folder.join("sipp.txt");
    let out = std::fs::File::create(&log_file).expect("a file");
    let port = free_port().to_string();
    let mut child = Command::new("sipp")
        .args([
            "127.0.0.1:9",
            "-i",
            "127.0.0.1",
            "-p",
            &port,
            "-m",
            "1",
            "-nostdin",
        ])
        .args(["-inf", "fields.csv", "-infindex", "fields.csv", "0", "-sf"])
        .arg(file)
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::from(out))
        .spawn()
        .expect("sipp starts");
    let limit = Instant::now() + Duration::from_secs(20);
    let taken = loop {
        let log = std::fs::read(&log_file).unwrap_or_default();
        if String::from_utf8_lossy(&log).contains("Resolving remote host") {
            break true;
        }
        if matches!(child.try_wait(), Ok(Some(_))) || Instant::now() > limit {
            let log = std::fs::read(&log_file).unwrap_or_default();
            break String::from_utf8_lossy(&log).contains("Resolving remote host");
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    // It may have ended by itself.
    let _ = child.kill();
    let _ = child.wait();
    taken
}

fn is_accepted_by_player(file: &Path, folder: &Path) -> Result<(), String> {
    let options = ScenarioOptions {
        inject: vec![folder.join("fields.csv")],
        index: vec!["fields.csv:0".to_owned()],
        allow_commands: true,
        ..ScenarioOptions::default()
    };
    load(file, &options)
        .map(drop)
        .map_err(|error| error.to_string())
}

fn scenarios(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut add = |name: String, text: &[u8]| {
        let path = folder.join(name);
        std::fs::write(&path, text).expect("a scenario");
        files.push(path);
    };
    for (number, shape) in shapes().iter().enumerate() {
        add(format!("shape{number}.xml"), shape.as_bytes());
    }
    for name in [
        "uac",
        "uas",
        "regexp",
        "branchc",
        "branchs",
        "uac_pcap",
        "ooc_default",
        "ooc_dummy",
    ] {
        let output = Command::new("sipp")
            .args(["-sd", name])
            .output()
            .expect("sipp");
        add(format!("built-in-{name}.xml"), &output.stdout);
    }
    let ours = root().join("scenarios/sipp");
    let mut folders = vec![ours];
    if let Some(data) = testdata() {
        let all = std::fs::read_dir(data.join("sipp")).expect("scenarios");
        folders.extend(all.flatten().map(|entry| entry.path()));
        let pcap = folder.join("pcap");
        std::fs::create_dir_all(&pcap).expect("a folder");
        for place in [pcap, folder.to_owned()] {
            let capture = data.join("captures/rtp/sipp-g711a.pcap");
            std::fs::copy(capture, place.join("g711a.pcap")).expect("a capture");
        }
        let digit = data.join("captures/dtmf/sipp-dtmf_2833_1.pcap");
        std::fs::copy(digit, folder.join("pcap/dtmf_2833_1.pcap")).expect("a capture");
    }
    // A further folder of scenarios may be given.
    folders.extend(std::env::var_os("HORNWORK_SCENARIOS").map(PathBuf::from));
    for place in folders {
        for entry in std::fs::read_dir(&place).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.extension().is_some_and(|kind| kind == "xml") {
                let text = std::fs::read(&path).expect("a scenario");
                let place = place.file_name().unwrap_or_default().to_string_lossy();
                let name = entry.file_name().to_string_lossy().into_owned();
                add(format!("{place}-{name}"), &text);
            }
        }
    }
    files
}

#[test]
fn nineteen_of_twenty_scenarios_accepted_by_sipp_are_accepted() {
    if !installed(&["sipp"]) {
        return;
    }
    let folder = scratch("scenarios-taken");
    let fields = "SEQUENTIAL\na;b;c;[authentication username=a password=b];e\n";
    std::fs::write(folder.join("fields.csv"), fields).expect("a file");
    let (mut of_sipp, mut of_ours) = (0u32, 0u32);
    let mut refused = Vec::new();
    for file in scenarios(&folder) {
        if !is_accepted_by_sipp(&file, &folder) {
            continue;
        }
        of_sipp += 1;
        match is_accepted_by_player(&file, &folder) {
            Ok(()) => of_ours += 1,
            Err(why) => refused.push(why),
        }
    }
    eprintln!("accepted {of_ours} of {of_sipp} that SIPp accepts; refused: {refused:#?}");
    assert!(of_sipp >= 90, "SIPp takes {of_sipp}");
    assert!(
        of_ours * 100 >= of_sipp * 95,
        "{of_ours} of {of_sipp}: {refused:#?}"
    );
}
