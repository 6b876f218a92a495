//! The last step of a release, where LLVM's BOLT is installed (Debian: `bolt-15`): the code of the finished program is put in the order in
//! which it runs, what is seldom run behind the rest, so that a call that comes after a wait fetches less of it. What ran how often is
//! counted in the program itself, at the same work as before; no result changes, and counts of an older build cost speed alone.

use crate::process::check;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Functions that are moved, by their names in the program: what Rust compiled, and the allocator. Ciphers that were written in the
/// assembler stay as they are.
const FUNCTIONS: &str = "-funcs=_ZN.*,_R.*,_rjem_.*";
/// What the linker has to leave in the program for that: where addresses of code stand.
pub const LINKED: &str = "-Clink-arg=-Wl,--emit-relocs";
/// Releases of LLVM whose tools are looked for, the newest first, after those without a number.
const RELEASES: core::ops::RangeInclusive<u32> = 14..=29;

/// The tools, of one release of LLVM.
#[derive(Clone, Debug)]
pub struct Tools {
    bolt: PathBuf,
    merge: PathBuf,
}

impl Tools {
    /// Those on the PATH; `None` where there are none.
    pub fn find() -> Option<Tools> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
        let numbers = RELEASES.rev().map(|number| format!("-{number}"));
        let endings = core::iter::once(String::new()).chain(numbers);
        endings
            .flat_map(|ending| {
                folders.iter().filter_map(move |folder| {
                    // By its real place: from there it finds what it puts into a program that counts.
                    let bolt = folder.join(format!("llvm-bolt{ending}")).canonicalize();
                    let merge = folder.join(format!("merge-fdata{ending}")).canonicalize();
                    Some(Tools {
                        bolt: bolt.ok()?,
                        merge: merge.ok()?,
                    })
                })
            })
            .next()
    }

    /// Leaves a program that counts what of it runs, in a file with this name and its process number for each of its lives.
    ///
    /// # Errors
    /// What the tool says.
    pub fn count(&self, program: &Path, counting: &Path, counts: &Path) -> Result<(), String> {
        let bare = counting.with_extension("bare");
        without_debug(program, &bare)?;
        let mut file = OsString::from("-instrumentation-file=");
        file.push(counts);
        let done = quietly(
            Command::new(&self.bolt)
                .arg(&bare)
                .args(["-instrument", "-instrumentation-file-append-pid", FUNCTIONS])
                .arg(file)
                .arg("-o")
                .arg(counting),
        );
        let _ = std::fs::remove_file(bare);
        done
    }

    /// Puts the counts of several lives together: all files of this folder.
    ///
    /// # Errors
    /// There are none, or what the tool says.
    pub fn merge(&self, counts: &Path, merged: &Path) -> Result<(), String> {
        let cannot = |error: std::io::Error| format!("{}: {error}", counts.display());
        let mut files = Vec::new();
        for entry in std::fs::read_dir(counts).map_err(cannot)? {
            files.push(entry.map_err(cannot)?.path());
        }
        if files.is_empty() {
            return Err("the program that counts has left no counts".to_owned());
        }
        quietly(Command::new(&self.merge).args(files).arg("-o").arg(merged))
    }

    /// Leaves the program with its code in the order that was counted.
    ///
    /// # Errors
    /// What the tool says.
    pub fn arrange(&self, program: &Path, counts: &Path, arranged: &Path) -> Result<(), String> {
        if let Some(folder) = arranged.parent() {
            std::fs::create_dir_all(folder)
                .map_err(|error| format!("{}: {error}", folder.display()))?;
        }
        let bare = arranged.with_extension("bare");
        without_debug(program, &bare)?;
        let mut data = OsString::from("-data=");
        data.push(counts);
        let done = quietly(
            Command::new(&self.bolt)
                .arg(&bare)
                .arg(data)
                .args([
                    FUNCTIONS,
                    "-reorder-blocks=ext-tsp",
                    "-reorder-functions=hfsort+",
                    "-split-functions",
                    "-split-all-cold",
                ])
                .arg("-o")
                .arg(arranged),
        );
        let _ = std::fs::remove_file(bare);
        done
    }
}

/// Lines of the source would be wrong in a program whose code was moved; names of functions stay.
fn without_debug(program: &Path, bare: &Path) -> Result<(), String> {
    check(
        Command::new("strip")
            .arg("-g")
            .arg("-o")
            .arg(bare)
            .arg(program),
    )
}

/// The tools tell a lot; what they told is shown where they fail.
fn quietly(command: &mut Command) -> Result<(), String> {
    let shown = command.get_program().to_os_string();
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{}: {error}", Path::new(&shown).display()))?;
    if output.status.success() {
        return Ok(());
    }
    let told = String::from_utf8_lossy(&output.stderr);
    let last: Vec<&str> = told.lines().rev().take(3).collect();
    Err(format!(
        "{}: {}: {}",
        Path::new(&shown).display(),
        output.status,
        last.join("; ")
    ))
}
