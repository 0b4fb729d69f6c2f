package checkpoint

// ReadRecords is tested over malformed ones, which no seal lets through.
var ReadRecords = readRecords
