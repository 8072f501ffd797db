# fetch_chromium.sh VERSION: install the npm package that carries a Chromium, and unpack it here.
set -eu
npm install --no-fund --no-audit --omit=dev --ignore-scripts "@sparticuz/chromium@$1"
node -e '
const {brotliDecompressSync} = require("zlib"), {readFileSync, writeFileSync} = require("fs");
const packed = name => readFileSync(`node_modules/@sparticuz/chromium/bin/${name}.br`);
for (const name of ["chromium", "al2023.tar", "fonts.tar", "swiftshader.tar"])
    writeFileSync(name, brotliDecompressSync(packed(name)));
'
chmod +x chromium
for archive in *.tar; do tar -xf "$archive"; done
rm -r node_modules package*.json ./*.tar
echo '<fontconfig><dir prefix="relative">fonts</dir><cachedir prefix="relative">cache</cachedir></fontconfig>' >fonts.conf
