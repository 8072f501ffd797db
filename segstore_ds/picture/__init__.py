"""Pictures of a stream: a description of plain values, drawn as SVG and HTML or by matplotlib."""
