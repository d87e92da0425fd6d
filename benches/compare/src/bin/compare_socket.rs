//! One of two ranks that send each other bytes over a loopback socket, both ways at once: what TCP itself allows.
//!
//! `compare_socket RIG RANK PORT`

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use annulus_rig::Rig;
use socket2::SockRef;

const SOCKET_BUFFER: usize = 1 << 20;
const CHUNK: usize = 256 << 10;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [path, rank, port] = arguments.as_slice() else {
        eprintln!("usage: compare_socket RIG RANK PORT");
        return ExitCode::from(2);
    };
    match run(path, rank, port) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("compare_socket: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(path: &str, rank: &str, port: &str) -> Result<(), Box<dyn std::error::Error>> {
    let rank: usize = rank.parse()?;
    let mut socket = meet(rank, SocketAddr::from((Ipv4Addr::LOCALHOST, port.parse()?)))?;
    let mut rig = Rig::open(path.as_ref(), rank, 2)?;
    while let Some(bytes) = rig.next_size() {
        let (mut input, mut output) = (vec![1_u8; bytes], vec![0_u8; bytes]);
        loop {
            let operations = rig.next_sample();
            if operations == 0 {
                break;
            }
            for _ in 0..operations {
                if rig.rewrites() {
                    input.fill(1);
                    std::hint::black_box(output.iter().map(|&byte| u64::from(byte)).sum::<u64>());
                    rig.begin_operation();
                    exchange(&mut socket, &input, &mut output)?;
                    rig.end_operation();
                } else {
                    exchange(&mut socket, &input, &mut output)?;
                }
            }
        }
    }
    Ok(())
}

fn meet(rank: usize, address: SocketAddr) -> io::Result<TcpStream> {
    let socket = if rank == 0 {
        TcpListener::bind(address)?.accept()?.0
    } else {
        let start = Instant::now();
        loop {
            match TcpStream::connect(address) {
                Ok(socket) => break socket,
                Err(error) if start.elapsed() > Duration::from_secs(30) => return Err(error),
                Err(_) => thread::sleep(Duration::from_millis(10)),
            }
        }
    };
    socket.set_nodelay(true)?;
    socket.set_nonblocking(true)?;
    SockRef::from(&socket).set_send_buffer_size(SOCKET_BUFFER)?;
    SockRef::from(&socket).set_recv_buffer_size(SOCKET_BUFFER)?;
    Ok(socket)
}

fn exchange(socket: &mut TcpStream, mut input: &[u8], output: &mut [u8]) -> io::Result<()> {
    let mut received = 0;
    while !input.is_empty() || received < output.len() {
        if !input.is_empty() {
            let sent = moved(socket.write(&input[..input.len().min(CHUNK)]))?;
            input = &input[sent..];
        }
        if received < output.len() {
            let end = output.len().min(received + CHUNK);
            received += moved(socket.read(&mut output[received..end]))?;
        }
    }
    Ok(())
}

/// How many bytes a non-blocking call moved.
fn moved(result: io::Result<usize>) -> io::Result<usize> {
    match result {
        Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
            Ok(0)
        }
        other => other,
    }
}
