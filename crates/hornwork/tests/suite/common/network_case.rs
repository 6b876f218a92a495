//! A test case with a folder of files, and scripts that run in networks of their own.

use super::{pings::LOSS, scratch};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// A case with its folder.
pub struct NetworkCase {
    pub folder: PathBuf,
    /// Begins each script.
    functions: String,
    /// Files whose text is added to the output of a script.
    logs: &'static [&'static str],
}

impl NetworkCase {
    /// A case with a new folder of this name.
    pub fn new(name: &str, functions: String, logs: &'static [&'static str]) -> NetworkCase {
        NetworkCase {
            folder: scratch(name),
            functions,
            logs,
        }
    }

    /// Writes a file that only its owner may read.
    pub fn write(&self, name: &str, text: &str) {
        let path = self.folder.join(name);
        std::fs::write(&path, text).expect("file");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("mode");
    }

    /// The text of a file; empty without it.
    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.folder.join(name)).unwrap_or_default()
    }

    /// Runs a script, which must succeed; returns its output with the logs.
    pub fn run(&self, script: &str) -> String {
        let output = Command::new("unshare")
            .args(["-n", "-m", "timeout", "240", "bash", "-c"])
            .arg(format!("{LOSS}{}{script}", self.functions))
            .current_dir(&self.folder)
            .env("HORNWORK", env!("CARGO_BIN_EXE_hornwork"))
            .stdin(Stdio::null())
            .output()
            .expect("unshare");
        let mut said = format!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        for log in self.logs {
            said.push_str(&format!("\n{log}: {}", self.read(log)));
        }
        assert!(
            output.status.success(),
            "{said}\nfar: {}",
            self.read("far.d/log")
        );
        said
    }
}
