//! Numbers of the block kinds, and the encoding of single records.
//!
//! A number, once released, keeps its layout for ever: postcard is positional, so a record type that
//! changes gets a new number, and the old one stays readable by a conversion.

use super::record::Record;

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $number:literal,)*) => {
        /// Kind of a block. All records of a block are of its kind.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u16)]
        pub enum Kind {
            $($(#[$doc])* $name = $number,)*
        }

        impl Kind {
            /// All kinds, in the order in which a flush writes them.
            pub const ALL: &[Kind] = &[$(Kind::$name,)*];

            #[must_use]
            pub fn from_number(number: u16) -> Option<Kind> {
                match number {
                    $($number => Some(Kind::$name),)*
                    _ => None,
                }
            }

            #[must_use]
            pub fn of(record: &Record) -> Kind {
                match record {
                    $(Record::$name(_) => Kind::$name,)*
                }
            }

            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Kind::$name => stringify!($name),)*
                }
            }

            /// Decodes the record at the beginning of `bytes` and returns what follows it.
            pub(super) fn decode(self, bytes: &[u8]) -> Result<(Record, &[u8]), postcard::Error> {
                match self {
                    $(Kind::$name => {
                        postcard::take_from_bytes(bytes).map(|(value, rest)| (Record::$name(value), rest))
                    })*
                }
            }
        }

        /// Appends the record.
        pub(super) fn encode(record: &Record, out: &mut Vec<u8>) -> Result<(), postcard::Error> {
            match record {
                $(Record::$name(value) => postcard::to_io(value, out).map(|_| ()),)*
            }
        }
    };
}

kinds! {
    Host = 1,
    Clock = 2,
    Window = 3,
    Environment = 4,
    Coverage = 5,
    Process = 6,
    Thread = 7,
    Life = 8,
    /// Column by column, unlike all others: [`super::columns`].
    Wait = 9,
    Dns = 10,
    Api = 11,
    Handshake = 12,
    Retransmit = 13,
    Socket = 14,
    Stack = 15,
    PythonStack = 24,
    CpuSamples = 25,
    ThreadTime = 16,
    CallCount = 17,
    Loss = 18,
    End = 19,
    Topology = 40,
    QueuePair = 48,
    RdmaPost = 49,
    RdmaCompletion = 50,
    RdmaWindow = 51,
    PortCounter = 52,
    RdmaAnchor = 53,
    RdmaEntry = 54,
    RdmaBirth = 55,
    RdmaPeer = 76,
    GpuName = 41,
    GpuActivities = 42,
    GpuSyncs = 80,
    MarkerFunction = 60,
    MarkerCalls = 61,
    RdmaSetup = 64,
    RdmaSetupTotals = 65,
    RdmaCommandTotals = 66,
    RdmaDeviceEvent = 67,
    PciDevice = 72,
    RdmaPort = 73,
    DeviceUse = 74,
    ThreadPlace = 75,
}
