//! Arguments that make no sense: every function answers with a code, and none crashes.

use std::collections::BTreeSet;
use std::env;
use std::ffi::{CString, c_int, c_void};
use std::mem::transmute;

use nccl::{Function, SURFACE};

use crate::own_process::in_own_process;
use crate::programs::library;

/// How often each function is called by each of its names.
const CALLS: usize = 150;

#[test]
fn senseless_arguments_are_answered() {
    in_own_process("hostile::senseless_arguments_are_answered", || {
        // SAFETY: no other thread reads the environment yet.
        unsafe {
            // A rank whose peers never come must give up soon.
            env::set_var("ANNULUS_TIMEOUT", "50ms");
            env::remove_var("NCCL_DEBUG");
        }
        let seed = env::var("ANNULUS_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
        let mut hostile = Hostile::new(seed.unwrap_or(0x5eed));
        for _ in 0..CALLS {
            for function in SURFACE {
                for prefix in ["", "p"] {
                    hostile.call(prefix, function);
                }
            }
        }
        // Not everything was refused at the door.
        for name in [
            "ncclCommInitRankConfig",
            "ncclAllReduce",
            "ncclCommSplit",
            "ncclMemAlloc",
            "ncclParamGetStr",
        ] {
            assert!(
                hostile.succeeded.contains(name),
                "no {name} succeeded: {:?}",
                hostile.succeeded
            );
        }
    });
}

/// A caller from hell, who keeps to what C itself demands: pointers lead somewhere, or are null.
struct Hostile {
    library: *mut c_void,
    random: u64,
    /// Where pointers lead; several times what any call of few elements needs.
    memory: Box<[[u64; 512]; 8]>,
    handles: Vec<usize>,
    parameters: Vec<usize>,
    texts: Vec<CString>,
    /// The functions that have returned `ncclSuccess`.
    succeeded: BTreeSet<&'static str>,
}

impl Hostile {
    fn new(seed: u64) -> Self {
        let path = library().join("libnccl.so.2");
        let path = CString::new(path.to_str().expect("UTF-8")).expect("no NUL");
        // SAFETY: the path is terminated.
        let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
        assert!(!library.is_null(), "{path:?} cannot be loaded");
        let texts = ["", "NCCL_DEBUG", "NCCL_ALGO", "no such thing", "ring"];
        let texts = texts.map(|text| CString::new(text).expect("no NUL")).to_vec();
        let memory = Box::new([[0; 512]; 8]);
        Self {
            library,
            random: seed | 1,
            memory,
            handles: Vec::new(),
            parameters: Vec::new(),
            texts,
            succeeded: BTreeSet::new(),
        }
    }

    fn call(&mut self, prefix: &str, function: &'static Function) {
        let name = format!("{prefix}{}", function.name);
        let symbol = CString::new(name.clone()).expect("no NUL");
        // SAFETY: the name is terminated.
        let address = unsafe { libc::dlsym(self.library, symbol.as_ptr()) };
        assert!(!address.is_null(), "{name} is not exported");
        self.prepare();
        let (mut registers, mut stack) = (Vec::new(), Vec::new());
        for kind in function.arguments {
            match *kind {
                "UniqueId" => stack.extend(self.unique_id()),
                "Team" => registers.extend([self.word(), self.word()]),
                kind => {
                    let value = self.argument(kind);
                    if registers.len() < 6 { registers.push(value) } else { stack.push(value) }
                }
            }
        }
        // A team that does not fit into the registers goes onto the stack; nobody reads it there.
        registers.resize(6, 0);
        stack.resize(24, 0);
        // Seen in the test's output when the process dies.
        eprintln!("{name} {registers:x?} {:x?}", &stack[..6]);
        // SAFETY: the arguments are what the function's type says, in the places where x86-64 has them.
        let result = unsafe { call(address, &registers, &stack) };
        // Some return a rank or a number of slots.
        if function.result == "c_int" && !name.contains("ncclTeam") && !name.contains("CalcSlots") {
            assert!((0..=8).contains(&(result as c_int)), "{name} returned {result}");
        }
        if function.result == "c_int" && result as c_int == 0 {
            self.succeeded.insert(function.name);
        }
        // Handles that were made are used, and so are those that were ended.
        self.handles.extend(
            self.memory[1][..2]
                .iter()
                .map(|word| *word as usize)
                .filter(|word| *word >> 48 == 0x414e),
        );
        if self.handles.len() > 40 {
            self.handles.remove(0);
        }
    }

    /// Fills the memory that pointers lead to.
    fn prepare(&mut self) {
        for at in 0..8 {
            let fill = match self.below(4) {
                0 => 0,
                1 => u64::MAX,
                _ => self.next(),
            };
            self.memory[0][at] = fill;
        }
        self.memory[1][..2].fill(0);
        // A configuration, mostly: size, magic and version, then undefined or hostile fields.
        for page in [2, 3] {
            let sizes = [24, 120, 72, 48, 4096, 0, 15, 20];
            self.memory[page][0] = sizes[self.below(sizes.len())];
            let magic = [0xcafe_beef, 0xcafe_beef, 0xcafe_beef, 0x7468_5283, 0][self.below(5)];
            let version = [23203, 22907, 21400, 0, u64::from(u32::MAX)][self.below(5)];
            self.memory[page][1] = version << 32 | magic;
            self.memory[page][2..16].fill(0x8000_0000_8000_0000);
            // Strings of `ncclConfig_t` and `ncclCollConfig_t`, its extensions and its event.
            for pointer in [2, 4, 5, 6, 8] {
                if page == 3 || pointer == 4 || pointer == 6 {
                    self.memory[page][pointer] = 0;
                }
            }
            if self.below(3) == 0 {
                self.memory[page][3] = self.next();
            }
        }
    }

    fn argument(&mut self, kind: &str) -> usize {
        match kind {
            "Handle" => self.handle(),
            "*mut Handle" => self.place(1),
            "*const Config" => self.place(2),
            "*const CollConfig" | "*const EncryptionConfig" | "*mut SimInfo" => self.place(3),
            "*const UniqueId" | "*mut UniqueId" | "*const WaitSignalDesc" => self.place(5),
            "*const c_char" => match self.below(self.texts.len() + 1) {
                0 => 0,
                text => self.texts[text - 1].as_ptr() as usize,
            },
            "*mut Parameter" => self.place(6),
            "Parameter" => {
                self.parameters.push(self.memory[6][0] as usize);
                let choice = self.below(self.parameters.len() + 2);
                self.parameters.get(choice).copied().unwrap_or(choice)
            }
            "Stream" => [0, 0, 0, 0, 1, 2, 3, usize::MAX][self.below(8)],
            "c_int" | "c_uint" => {
                let values = [0, 0, 0, 1, 2, 3, 7, 11, 12, 64, -1, -2, 100, c_int::MIN, c_int::MAX];
                values[self.below(values.len())] as u32 as usize
            }
            "usize" | "u64" => {
                let values =
                    [0, 1, 2, 9, 16, usize::MAX, usize::MAX / 2, usize::MAX / 8 + 1, 1 << 62];
                values[self.below(values.len())]
            }
            // Data and places for results.
            _ => self.place(7),
        }
    }

    fn handle(&mut self) -> usize {
        let (choice, bit) = (self.below(8), self.below(64));
        let which = self.below(self.handles.len().max(1));
        match (choice, self.handles.get(which)) {
            (0, _) => 0,
            (1, _) => self.word(),
            (2, _) => self.memory.as_ptr() as usize,
            (3, Some(handle)) => handle ^ 1 << bit,
            (_, Some(handle)) => *handle,
            (_, None) => 0x414e << 48,
        }
    }

    /// Null, or the page of that number, which may be off by a byte.
    fn place(&mut self, page: usize) -> usize {
        let page = self.memory[page].as_ptr() as usize;
        [0, page, page, page, page, page + 1][self.below(6)]
    }

    /// An id: of this library with a byte changed, or whole, or nonsense.
    fn unique_id(&mut self) -> Vec<usize> {
        let mut words: Vec<usize> =
            self.memory[5][..16].iter().map(|word| *word as usize).collect();
        let (choice, which, word) = (self.below(4), self.below(16), self.word());
        match choice {
            0 => words[which] ^= word,
            1 => words.fill(0),
            _ => {}
        }
        words
    }

    fn word(&mut self) -> usize {
        self.next() as usize
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() >> 33) as usize % limit
    }

    /// xorshift64
    fn next(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }
}

/// Calls the function with six words in registers and the others on the stack, where a struct by value lies.
///
/// # Safety
/// The words are arguments that the function may be called with.
#[rustfmt::skip]
unsafe fn call(function: *mut c_void, r: &[usize], s: &[usize]) -> usize {
    type W = usize;
    type AnyFunction = unsafe extern "C" fn(
        W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W,
    ) -> W;
    // SAFETY: on x86-64 a function does not see arguments beyond its own, and the caller clears them away.
    unsafe {
        let function: AnyFunction = transmute(function);
        function(
            r[0], r[1], r[2], r[3], r[4], r[5],
            s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7], s[8], s[9], s[10], s[11],
            s[12], s[13], s[14], s[15], s[16], s[17], s[18], s[19], s[20], s[21], s[22], s[23],
        )
    }
}
