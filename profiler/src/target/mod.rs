//! The process under study: tree, maps, namespaces, libraries, sockets.
