//! The pages of the web console, built into the program from `web/dist`.

/// A file of the web console.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageFile {
    /// Path below the root, without a leading slash.
    pub path: &'static str,
    /// Entity tag, quoted: a hash of the content.
    pub tag: &'static str,
    /// The content.
    pub bytes: &'static [u8],
}

/// All files, sorted by path; empty if the pages were not built.
pub static PAGE_FILES: &[PageFile] = include!(concat!(env!("OUT_DIR"), "/pages.rs"));

/// The file of this path.
pub fn page_file(path: &str) -> Option<&'static PageFile> {
    let found = PAGE_FILES.binary_search_by(|file| file.path.cmp(path));
    found.ok().and_then(|at| PAGE_FILES.get(at))
}

/// The media type of a file by the end of its name.
pub fn media_type(path: &str) -> &'static str {
    match path.rsplit_once('.').map_or("", |(_, end)| end) {
        "html" => "text/html; charset=utf-8",
        "js" | "mjs" => "text/javascript; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "json" | "map" => "application/json",
        "webmanifest" => "application/manifest+json",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        "ico" => "image/x-icon",
        "woff2" => "font/woff2",
        "txt" => "text/plain; charset=utf-8",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_sorted_and_have_tags() {
        assert!(PAGE_FILES.is_sorted_by(|one, other| one.path < other.path));
        for file in PAGE_FILES {
            assert!(file.tag.starts_with('"') && file.tag.ends_with('"'));
            assert_eq!(page_file(file.path), Some(file));
        }
        assert_eq!(page_file("../Cargo.toml"), None);
        assert_eq!(media_type("assets/x.js"), "text/javascript; charset=utf-8");
        assert_eq!(media_type("x"), "application/octet-stream");
    }
}
