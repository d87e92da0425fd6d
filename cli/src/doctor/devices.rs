//! Network adapters with remote memory access, and graphics processors.

use std::fs;
use std::path::{Path, PathBuf};

use super::Finding;

pub(super) fn examine() -> Vec<Finding> {
    vec![adapters(Path::new("/sys/class/infiniband")), graphics(Path::new("/proc/driver/nvidia"))]
}

fn adapters(folder: &Path) -> Finding {
    let subject = "RDMA devices";
    let list: Vec<_> = entries(folder).iter().map(|device| adapter(device)).collect();
    if list.is_empty() {
        return Finding::ok(subject, "none");
    }
    let finding = Finding::note(subject, list.join("; "));
    finding
        .with_remedy("this version reaches other hosts by TCP only, over their network interfaces")
}

fn adapter(device: &Path) -> String {
    let ports: Vec<_> = entries(&device.join("ports"))
        .iter()
        .map(|port| {
            let text = |file: &str| {
                let text = fs::read_to_string(port.join(file)).unwrap_or_default();
                text.trim().rsplit(": ").next().unwrap_or_default().to_lowercase()
            };
            format!("port {} {} {} {}", name(port), text("state"), text("link_layer"), text("rate"))
        })
        .collect();
    format!("{}: {}", name(device), ports.join(", "))
}

fn graphics(folder: &Path) -> Finding {
    let subject = "NVIDIA GPUs";
    let model = |gpu: &PathBuf| {
        let text = fs::read_to_string(gpu.join("information")).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("Model:"));
        line.map_or_else(|| name(gpu), |model| model.trim().to_owned())
    };
    let mut list: Vec<_> = entries(&folder.join("gpus")).iter().map(model).collect();
    if list.is_empty() {
        // A container may have the devices without the driver's folder.
        let devices = entries(Path::new("/dev"));
        let number =
            |name: &str| name.strip_prefix("nvidia").is_some_and(|n| n.parse::<u32>().is_ok());
        list = devices.iter().map(|device| name(device)).filter(|name| number(name)).collect();
    }
    if list.is_empty() {
        return Finding::ok(subject, "none");
    }
    let finding = Finding::note(subject, format!("{}: {}", list.len(), list.join(", ")));
    finding.with_remedy("this version works on host memory only: copy tensors there first")
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The entries of a folder in order; none if it is not there.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let Ok(list) = fs::read_dir(folder) else { return Vec::new() };
    let mut entries: Vec<_> = list.filter_map(|entry| Some(entry.ok()?.path())).collect();
    entries.sort();
    entries
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_described() {
        let folder = std::env::temp_dir().join(format!("annulus-devices-{}", std::process::id()));
        let port = folder.join("mlx5_0/ports/1");
        let gpu = folder.join("gpus/0000:18:00.0");
        for new in [&port, &gpu] {
            fs::create_dir_all(new).expect("a folder");
        }
        for (file, text) in [
            (port.join("state"), "4: ACTIVE\n"),
            (port.join("link_layer"), "InfiniBand\n"),
            (port.join("rate"), "400 Gb/sec (4X NDR)\n"),
            (gpu.join("information"), "Model: \t\t NVIDIA H200\nIRQ: 1\n"),
        ] {
            fs::write(file, text).expect("a file");
        }
        let description = adapter(&folder.join("mlx5_0"));
        let processors = graphics(&folder);
        fs::remove_dir_all(&folder).expect("the test's own folder");
        assert_eq!(description, "mlx5_0: port 1 active infiniband 400 gb/sec (4x ndr)");
        assert_eq!(processors.found, "1: NVIDIA H200");
        assert_eq!(adapters(Path::new("/nowhere")).found, "none");
    }
}
