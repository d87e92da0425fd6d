//! Which instructions the kernels use.

use std::sync::OnceLock;

/// The environment variable that overrides the choice.
const VARIABLE: &str = "ANNULUS_ISA";

/// A set of instructions that kernels exist for. All give the same results, bit for bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Isa {
    /// What every CPU of the architecture has.
    Portable,
    /// AVX2 and F16C.
    Avx2,
    /// AVX2 for all but the 16-bit floats, where AVX-512F and AVX-512BW are faster.
    Avx512,
}

/// `ANNULUS_ISA` asks for something that cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IsaError {
    /// The value is none of the names.
    #[error("ANNULUS_ISA is {value:?}: use portable, avx2 or avx512, or unset it")]
    Unknown {
        /// The value found.
        value: String,
    },
    /// The CPU lacks the instructions.
    #[error("ANNULUS_ISA asks for {wanted}, which this CPU lacks: use {best}, or unset it")]
    Unavailable {
        /// The set asked for.
        wanted: &'static str,
        /// The best one that the CPU has.
        best: &'static str,
    },
}

impl Isa {
    const ALL: [Self; 3] = [Self::Portable, Self::Avx2, Self::Avx512];

    /// What kernels use from now on: `ANNULUS_ISA` if it is set and valid, else the best that the
    /// CPU has. Resolved once per process; [`Config::from_env`](crate::Config::from_env) reports a bad value.
    pub(crate) fn current() -> Self {
        static CURRENT: OnceLock<Isa> = OnceLock::new();
        *CURRENT.get_or_init(|| Self::from_env().unwrap_or_else(|_| Self::best()))
    }

    /// What `ANNULUS_ISA` asks for, or the best that the CPU has if it is unset or empty.
    pub(crate) fn from_env() -> Result<Self, IsaError> {
        match std::env::var_os(VARIABLE) {
            Some(value) if !value.is_empty() => Self::parse(&value.to_string_lossy()),
            _ => Ok(Self::best()),
        }
    }

    /// The instruction sets that this CPU has.
    pub(crate) fn available() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|isa| isa.is_available())
    }

    /// The name that `ANNULUS_ISA` takes.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        }
    }

    /// The set of that name, if this CPU has it.
    pub(crate) fn parse(value: &str) -> Result<Self, IsaError> {
        let isa = Self::ALL
            .into_iter()
            .find(|isa| isa.name() == value)
            .ok_or_else(|| IsaError::Unknown { value: value.to_owned() })?;
        if isa.is_available() {
            Ok(isa)
        } else {
            Err(IsaError::Unavailable { wanted: isa.name(), best: Self::best().name() })
        }
    }

    fn best() -> Self {
        Self::available().last().unwrap_or(Self::Portable)
    }

    pub(super) fn is_available(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c");
            match self {
                Self::Portable => true,
                Self::Avx2 => avx2,
                Self::Avx512 => {
                    avx2 && is_x86_feature_detected!("avx512f")
                        && is_x86_feature_detected!("avx512bw")
                }
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            self == Self::Portable
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parsed_and_bad_ones_explained() {
        assert_eq!(Isa::parse("portable"), Ok(Isa::Portable));
        for isa in Isa::available() {
            assert_eq!(Isa::parse(isa.name()), Ok(isa));
        }
        let error = Isa::parse("sse9").unwrap_err();
        assert_eq!(
            error.to_string(),
            "ANNULUS_ISA is \"sse9\": use portable, avx2 or avx512, or unset it"
        );
        for isa in Isa::ALL.into_iter().filter(|isa| !isa.is_available()) {
            let error = Isa::parse(isa.name()).unwrap_err();
            assert!(matches!(error, IsaError::Unavailable { wanted, .. } if wanted == isa.name()));
        }
    }
}
