//! The bearer token of the control interface (RFC 6750), stored as a hash.

use crate::secret_file;
use sha2::{Digest as _, Sha256};
use std::path::Path;
use subtle::ConstantTimeEq as _;

/// The bearer token (RFC 6750), stored as a hash only.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct BearerToken([u8; 32]);

impl std::fmt::Debug for BearerToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("BearerToken(..)")
    }
}

impl BearerToken {
    /// The token with this text.
    pub(crate) fn of(text: &str) -> BearerToken {
        BearerToken(Sha256::digest(text).into())
    }

    /// Reads the token file.
    ///
    /// # Errors
    /// The problem, and the remedy.
    pub(crate) fn read(path: &Path) -> Result<BearerToken, (String, String)> {
        let form = "letters, digits and - . _ ~ + / =";
        secret_file::read(path, is_token, form).map(|text| BearerToken::of(&text))
    }

    /// Compares in constant time.
    pub(crate) fn matches(&self, text: &[u8]) -> bool {
        let digest: [u8; 32] = Sha256::digest(text).into();
        digest.ct_eq(&self.0).into()
    }
}

/// Whether a text has only the characters of a token (RFC 6750 section 2.1).
pub(crate) fn is_token(text: &str) -> bool {
    text.bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "0123456789abcdef";

    #[test]
    fn token_file_must_be_private() {
        use std::os::unix::fs::PermissionsExt as _;
        let path = std::env::temp_dir().join(format!("hornwork-token-{}", std::process::id()));
        let write = |text: &str, mode: u32| {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            BearerToken::read(&path).map_err(|(message, _)| message)
        };
        assert_eq!(
            write("0123456789abcdef\n", 0o600),
            Ok(BearerToken::of(TOKEN))
        );
        assert_eq!(write("0123456789abcdef", 0o400), Ok(BearerToken::of(TOKEN)));
        for mode in [0o640, 0o604, 0o620, 0o610] {
            let error = write("0123456789abcdef", mode).unwrap_err();
            assert!(
                error.contains("by others than its owner"),
                "{mode:o}: {error}"
            );
        }
        let long = "x".repeat(257);
        for text in ["", "short", "0123456789abcde\n", "0123456789 abcdef", &long] {
            assert!(
                write(text, 0o600)
                    .unwrap_err()
                    .contains("does not consist of one line"),
                "{text}"
            );
        }
        std::fs::remove_file(&path).unwrap();
        assert!(
            BearerToken::read(&path)
                .unwrap_err()
                .0
                .contains("cannot be read")
        );
        assert_eq!(format!("{:?}", BearerToken::of(TOKEN)), "BearerToken(..)");
    }
}
