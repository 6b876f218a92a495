//! A PostgreSQL server for tests: Debian's, with a scratch folder, reached by a Unix socket or on the loopback
//! interface.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

/// Number in the name of the Unix socket.
pub const PORT: u16 = 5432;

/// A server that ends with this value.
pub struct Server {
    /// Folder of the Unix socket.
    pub folder: PathBuf,
    programs: PathBuf,
    options: Vec<String>,
    child: Mutex<Option<Child>>,
    databases: AtomicU32,
    port: AtomicU16,
}

/// The folder of the programs; `None`, with a printed reason, without PostgreSQL.
fn programs() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten();
    let mut all: Vec<PathBuf> = versions
        .flatten()
        .map(|version| version.path().join("bin"))
        .filter(|folder| folder.join("initdb").is_file() && folder.join("psql").is_file())
        .collect();
    all.sort();
    if all.is_empty() {
        eprintln!("skipped: not installed: postgresql");
    }
    all.pop()
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|data| data.uid() == 0)
}

/// A program of the server: it refuses to run as root.
fn command(programs: &Path, name: &str) -> Command {
    let program = programs.join(name);
    if !is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid=postgres", "--regid=postgres", "--clear-groups"])
        .arg(program);
    // The folder of the caller may be closed for this user.
    command.current_dir("/");
    command
}

impl Server {
    /// The server of all tests that need no other one; `None`, with a printed reason, without PostgreSQL.
    pub fn shared() -> Option<Arc<Server>> {
        static SHARED: Mutex<Weak<Server>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap_or_else(|error| error.into_inner());
        if let Some(server) = shared.upgrade() {
            return Some(server);
        }
        let server = Arc::new(Server::new(&[], "")?);
        *shared = Arc::downgrade(&server);
        Some(server)
    }

    /// A server of its own, with further options (`name=value`) and lines of pg_hba.conf.
    pub fn new(options: &[String], access: &str) -> Option<Server> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let programs = programs()?;
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = format!("hornwork-postgres-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).expect("folder of the server");
        if is_root() {
            let owned = Command::new("chown").arg("postgres").arg(&folder).status();
            assert!(owned.is_ok_and(|status| status.success()));
        }
        let data = folder.join("data");
        let mut initdb = command(&programs, "initdb");
        initdb.arg("-D").arg(&data).args([
            "-U",
            "postgres",
            "-A",
            "trust",
            "-N",
            "--no-locale",
            "-E",
            "UTF8",
        ]);
        let output = initdb.output().expect("initdb");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let access = format!("local all all trust\n{access}\n");
        std::fs::write(data.join("pg_hba.conf"), access).expect("pg_hba.conf");
        let file = data.join("postgresql.conf");
        let text = std::fs::read_to_string(&file).expect("postgresql.conf");
        let more = "listen_addresses = ''\n";
        std::fs::write(&file, format!("{text}\n{more}")).expect("postgresql.conf");
        let server = Server {
            folder,
            programs,
            options: options.to_vec(),
            child: Mutex::new(None),
            databases: AtomicU32::new(0),
            port: AtomicU16::new(PORT),
        };
        server.run();
        Some(server)
    }

    /// Starts it, and waits until it answers.
    pub fn run(&self) {
        let log = std::fs::File::create(self.folder.join("log")).expect("log");
        let mut postgres = command(&self.programs, "postgres");
        postgres
            .arg("-D")
            .arg(self.folder.join("data"))
            .arg("-k")
            .arg(&self.folder)
            .args(["-p", &self.port()])
            .args(["-c", "fsync=off", "-c", "max_connections=60"])
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("log"))
            .stderr(log);
        for option in &self.options {
            postgres.args(["-c", option]);
        }
        let child = postgres.spawn().expect("postgres");
        *self.child.lock().unwrap() = Some(child);
        let until = Instant::now() + Duration::from_secs(30);
        while self.psql("postgres", "SELECT 1").is_none() {
            let log = std::fs::read_to_string(self.folder.join("log")).unwrap_or_default();
            assert!(Instant::now() < until, "{log}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Ends it as a crash does: no transaction is completed, and recovery follows at the next start.
    pub fn crash(&self) {
        if let Some(mut child) = self.child.lock().unwrap().take() {
            self.signal(child.id(), "QUIT");
            let _ = child.wait();
        }
    }

    /// Sends a signal to the server and all its processes.
    pub fn signal_all(&self, name: &str) {
        if let Some(child) = &*self.child.lock().unwrap() {
            let id = child.id().to_string();
            let children = Command::new("pgrep").args(["-P", &id]).output();
            let children = children.expect("pgrep").stdout;
            for child in String::from_utf8_lossy(&children).lines() {
                self.signal(child.trim().parse().expect("a number"), name);
            }
            self.signal(child.id(), name);
        }
    }

    fn signal(&self, id: u32, name: &str) {
        let _ = Command::new("kill")
            .args([&format!("-{name}"), &id.to_string()])
            .status();
    }

    /// Creates an empty database; returns its name.
    pub fn database(&self) -> String {
        let number = self.databases.fetch_add(1, Ordering::Relaxed);
        let name = format!("test{number}");
        let created = self.psql("postgres", &format!("CREATE DATABASE {name}"));
        created.expect("CREATE DATABASE");
        name
    }

    /// Writes a file that only the server may read; returns its path.
    pub fn share(&self, name: &str, contents: &str) -> PathBuf {
        let path = self.folder.join(name);
        std::fs::write(&path, contents).expect("file");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&path, mode).expect("mode");
        if is_root() {
            let owned = Command::new("chown").arg("postgres").arg(&path).status();
            assert!(owned.is_ok_and(|status| status.success()));
        }
        path
    }

    /// Starts the stopped server with further settings, with a port on the loopback interface.
    pub fn configure(&self, settings: &str, port: u16) {
        let file = self.folder.join("data/postgresql.conf");
        let text = std::fs::read_to_string(&file).expect("postgresql.conf");
        std::fs::write(&file, format!("{text}\n{settings}")).expect("postgresql.conf");
        self.port.store(port, Ordering::Relaxed);
        self.run();
    }

    fn port(&self) -> String {
        self.port.load(Ordering::Relaxed).to_string()
    }

    /// The connection URL of a database by the Unix socket.
    pub fn url(&self, database: &str) -> String {
        format!(
            "postgresql://postgres@/{database}?host={}",
            self.folder.display()
        )
    }

    /// The output of a statement, without alignment and heads; `None` if it failed.
    pub fn psql(&self, database: &str, statement: &str) -> Option<String> {
        let output = Command::new(self.programs.join("psql"))
            .args([
                "-X",
                "-A",
                "-t",
                "-q",
                "-v",
                "ON_ERROR_STOP=1",
                "-U",
                "postgres",
            ])
            .arg("-h")
            .arg(&self.folder)
            .args(["-p", &self.port(), "-d", database, "-c", statement])
            .stdin(Stdio::null())
            .output()
            .expect("psql");
        let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        output.status.success().then_some(text)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.signal_all("CONT");
        self.crash();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
