//! `hornwork console`: hashes of passwords and tokens for `[[console.user]]`; and the check of a password.

use super::sessions::secret;
use argon2::Argon2;
use argon2::password_hash::phc::PasswordHash;
use argon2::password_hash::{PasswordHasher as _, PasswordVerifier as _};
use clap::Subcommand;
use sha2::{Digest as _, Sha256};
use std::fmt::Write as _;
use std::io::{BufRead as _, IsTerminal as _};
use std::process::{Command, ExitCode, Stdio};

/// Shortest password, characters.
const MIN_PASSWORD: usize = 8;
/// Bytes of a salt.
const SALT_BYTES: usize = 16;
/// Hash that is compared for users that do not exist, so that the time of the answer does not tell them. Its parameters
/// are those of [`hash`].
const NO_USER: &str = "$argon2id$v=19$m=19456,t=2,p=1$AAAAAAAAAAAAAAAAAAAAAA$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

/// Commands of `hornwork console`.
#[derive(Debug, Subcommand)]
pub(crate) enum ConsoleCommand {
    /// Read a password from standard input (one line), and print its hash for `password_hash` of [[console.user]].
    #[command(after_help = "Example: hornwork console hash-password")]
    HashPassword,
    /// Print a new random token, and its hash for `token_hash` of [[console.user]].
    #[command(after_help = "Example: hornwork console token")]
    Token,
}

/// `hornwork console`.
pub(crate) fn run(command: &ConsoleCommand) -> ExitCode {
    let done = match command {
        ConsoleCommand::HashPassword => read_password().and_then(|password| hash(&password)),
        ConsoleCommand::Token => new_token(),
    };
    match done {
        Ok(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err((code, why)) => {
            eprintln!("hornwork: {why}");
            ExitCode::from(code)
        }
    }
}

/// Exit code and reason of a failure.
type HashFailure = (u8, String);

/// Reads a line; a terminal does not show it.
fn read_password() -> Result<String, HashFailure> {
    let is_terminal = std::io::stdin().is_terminal();
    let echo = |word: &str| {
        if is_terminal {
            // Without stty the password is shown while it is typed.
            let _ = Command::new("stty")
                .arg(word)
                .stdin(Stdio::inherit())
                .status();
        }
    };
    if is_terminal {
        eprint!("password: ");
    }
    echo("-echo");
    let mut line = String::new();
    let read = std::io::stdin().lock().read_line(&mut line);
    echo("echo");
    if is_terminal {
        eprintln!();
    }
    read.map_err(|error| (3, format!("cannot read standard input: {error}")))?;
    let password = line.trim_end_matches(['\r', '\n']).to_owned();
    match password.chars().count() {
        0..MIN_PASSWORD => Err((
            2,
            format!(
                "a password has at least {MIN_PASSWORD} characters\n  remedy: write a longer one as one line"
            ),
        )),
        _ if password.len() > super::access::MAX_CREDENTIAL => Err((
            2,
            format!(
                "a password has at most {} octets\n  remedy: write a shorter one",
                super::access::MAX_CREDENTIAL
            ),
        )),
        _ => Ok(password),
    }
}

/// The Argon2id hash of a password with a random salt: 19 MiB, two passes, one lane.
fn hash(password: &str) -> Result<String, HashFailure> {
    let failed = |why: String| (3, format!("cannot hash the password: {why}"));
    let mut salt = [0; SALT_BYTES];
    let mut entropy = net::entropy().map_err(|error| failed(error.to_string()))?;
    entropy.fill(&mut salt);
    let hashed = Argon2::default().hash_password_with_salt(password.as_bytes(), &salt);
    let hashed: PasswordHash = hashed.map_err(|error| failed(error.to_string()))?;
    Ok(hashed.to_string())
}

fn new_token() -> Result<String, HashFailure> {
    let mut entropy = net::entropy().map_err(|error| (3, format!("no randomness: {error}")))?;
    let token = secret(&mut entropy);
    let mut hex = String::new();
    for byte in Sha256::digest(&token) {
        // Writing into a String cannot fail.
        let _ = write!(hex, "{byte:02x}");
    }
    Ok(format!("token: {token}\ntoken_hash = \"{hex}\""))
}

/// Whether a password belongs to a hash; `None`: the user does not exist, or has no password. Takes tens of
/// milliseconds of CPU time in any case.
pub(super) fn is_password(password: &str, hash: Option<&str>) -> bool {
    let verified = PasswordHash::new(hash.unwrap_or(NO_USER)).is_ok_and(|parsed| {
        Argon2::default()
            .verify_password(password.as_bytes(), &parsed)
            .is_ok()
    });
    verified && hash.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_verified_by_their_hashes() {
        let one = hash("correct horse").unwrap();
        assert!(one.starts_with("$argon2id$v=19$m=19456,t=2,p=1$"), "{one}");
        assert_ne!(one, hash("correct horse").unwrap(), "salted");
        assert!(is_password("correct horse", Some(&one)));
        assert!(!is_password("correct horsf", Some(&one)));
        assert!(!is_password("correct horse", None));
        assert!(!is_password("x", Some("$argon2id$broken")));
        assert!(PasswordHash::new(NO_USER).is_ok());
        let text = format!(
            "[[interface]]\nname=\"a\"\nlisten=\"udp:192.0.2.1:5060\"\n[console]\nlisten=\"127.0.0.1:1\"\n[[console.user]]\nname=\"a\"\nrole=\"viewer\"\npassword_hash=\"{one}\"\n"
        );
        assert!(config::parse(&text, "f").is_ok());
        let token = new_token().unwrap();
        let token_hash = token.lines().nth(1).unwrap();
        assert!(config::parse(&format!("{text}{token_hash}\n"), "f").is_ok());
    }
}
